//! Port-forwards of pods over a WebSocket, with the subprotocol `v4.channel.k8s.io`: of each port, channel 0 carries data in both
//! directions and channel 1 the reason of a failure. Each channel starts with the port's number.

use std::{
    fmt,
    io::{Read, Write as _},
    net::{Shutdown, TcpStream},
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Context as _, Result, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hyper::header::{
    CONNECTION, HeaderName, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use sha1::{Digest as _, Sha1};

/// Connects to a port on a pod's loopback.
pub(super) struct Connector(pub(super) Box<dyn Fn(u16) -> Result<TcpStream> + Send + Sync>);

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

const PROTOCOL: &str = "v4.channel.k8s.io";
/// RFC 6455 §1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
/// The end of a connection, without a reason.
const CLOSE_FRAME: [u8; 2] = [0x80 | CLOSE, 0];

/// The headers of the response that upgrades the connection to one with this key.
pub(super) fn upgrade_headers(key: &str) -> [(HeaderName, String); 4] {
    let digest = Sha1::digest(format!("{key}{GUID}"));
    [
        (UPGRADE, "websocket".to_owned()),
        (CONNECTION, "Upgrade".to_owned()),
        (SEC_WEBSOCKET_ACCEPT, STANDARD.encode(digest)),
        (SEC_WEBSOCKET_PROTOCOL, PROTOCOL.to_owned()),
    ]
}

/// Forwards until either side closes the connection.
pub(super) fn serve(
    mut stream: TcpStream,
    mut reader: impl Read,
    port: u16,
    connector: &Connector,
) -> Result<()> {
    for channel in [0, 1] {
        let [low, high] = port.to_le_bytes();
        send(&mut stream, &[channel, low, high])?;
    }
    let target = match connector.0(port) {
        Ok(target) => target,
        Err(error) => {
            let mut reason = vec![1];
            reason.extend_from_slice(format!("{error:#}").as_bytes());
            send(&mut stream, &reason)?;
            stream.write_all(&CLOSE_FRAME)?;
            // The client answers with the same; closing earlier could cost it the reason.
            return drain(&mut reader);
        }
    };
    let to_client = Mutex::new(stream);
    thread::scope(|scope| {
        scope.spawn(|| {
            // The end of either side ends both.
            let _ = forward_to_client(&target, &to_client);
            let _ = lock(&to_client).write_all(&CLOSE_FRAME);
        });
        let result = forward_to_pod(&mut reader, &target);
        let _ = target.shutdown(Shutdown::Both);
        result
    })
}

/// Reads until the client closes the connection.
fn drain(reader: &mut impl Read) -> Result<()> {
    std::io::copy(reader, &mut std::io::sink())?;
    Ok(())
}

fn lock(stream: &Mutex<TcpStream>) -> std::sync::MutexGuard<'_, TcpStream> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

fn forward_to_client(mut target: &TcpStream, client: &Mutex<TcpStream>) -> Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let length = target.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        let mut message = vec![0];
        message.extend_from_slice(buffer.get(..length).unwrap_or_default());
        send(&mut lock(client), &message)?;
    }
}

fn forward_to_pod(reader: &mut impl Read, mut target: &TcpStream) -> Result<()> {
    loop {
        let (opcode, message) = receive(reader)?;
        match (opcode, message.split_first()) {
            (BINARY, Some((0, data))) => target.write_all(data)?,
            (CLOSE, _) => return Ok(()),
            _ => {}
        }
    }
}

/// Sends an unfragmented binary frame.
fn send(stream: &mut TcpStream, message: &[u8]) -> Result<()> {
    let mut frame = vec![0x80 | BINARY];
    match u16::try_from(message.len()) {
        Ok(length) if length < 126 => frame.push(message.len().try_into()?),
        Ok(length) => {
            frame.push(126);
            frame.extend_from_slice(&length.to_be_bytes());
        }
        Err(_) => bail!("a frame of {} bytes", message.len()),
    }
    frame.extend_from_slice(message);
    Ok(stream.write_all(&frame)?)
}

/// Receives an unfragmented frame of a client, which are masked.
fn receive(reader: &mut impl Read) -> Result<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    reader.read_exact(&mut head).context("a frame")?;
    let length = match head[1] & 0x7f {
        126 => {
            let mut length = [0; 2];
            reader.read_exact(&mut length)?;
            u16::from_be_bytes(length).into()
        }
        127 => bail!("a frame of more than 64 KiB"),
        length => usize::from(length),
    };
    let mut mask = [0; 4];
    reader.read_exact(&mut mask)?;
    let mut message = vec![0; length];
    reader.read_exact(&mut message)?;
    for (byte, mask) in message.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
    Ok((head[0] & 0x0f, message))
}
