//! The server at a port.

use std::{
    io::{Cursor, Read as _},
    net::TcpListener,
    sync::{Arc, atomic::Ordering},
    thread,
};

use anyhow::{Context as _, Result, anyhow};
use http_body_util::{BodyExt as _, Empty};
use hyper::{
    Request, Response, StatusCode, Uri,
    body::Incoming,
    header::SEC_WEBSOCKET_KEY,
    server::conn::http1,
    service::service_fn,
    upgrade::{OnUpgrade, on},
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{
    Network,
    objects::failure,
    port_forward::{self, Connector},
    server::{ResponseBody, json_response},
};
use crate::wait::lock;

/// Serves connections until the process ends.
pub(super) fn serve(listener: TcpListener, network: &Arc<Network>) -> Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            network.connections.fetch_add(1, Ordering::Relaxed);
            let network = Arc::clone(network);
            let service = service_fn(move |request| respond(Arc::clone(&network), request));
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // Errors are closed connections.
            tokio::spawn(connection.with_upgrades());
        }
    })
}

async fn respond(
    network: Arc<Network>,
    mut request: Request<Incoming>,
) -> Result<Response<ResponseBody>> {
    if let Some((pod, port)) = forwarded_port(request.uri()) {
        network.server.record(&request);
        let connector = lock(&network.port_forwards).get(&pod).cloned();
        let Some(connector) = connector else {
            return Ok(json_response(failure(403, "Forbidden", None)));
        };
        let key = request.headers().get(SEC_WEBSOCKET_KEY);
        let key = key.context("no key")?.to_str()?.to_owned();
        tokio::spawn(tunnel(on(&mut request), port, connector));
        let mut response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        for (name, value) in port_forward::upgrade_headers(&key) {
            response = response.header(name, value);
        }
        let body = Empty::new().map_err(|never| match never {});
        return Ok(response.body(body.boxed_unsync())?);
    }
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let request = Request::from_parts(parts, body);
    Ok(network.server.respond(request).await?)
}

/// Namespace and name of the pod in `/api/v1/namespaces/…/pods/…/portforward?ports=…`, and the port.
fn forwarded_port(uri: &Uri) -> Option<(String, u16)> {
    let pod = uri.path().strip_prefix("/api/v1/namespaces/")?;
    let pod = pod.strip_suffix("/portforward")?;
    let mut query = form_urlencoded::parse(uri.query()?.as_bytes());
    let (_, port) = query.find(|(name, _)| name == "ports")?;
    Some((pod.replacen("/pods/", "/", 1), port.parse().ok()?))
}

async fn tunnel(upgrade: OnUpgrade, port: u16, connector: Arc<Connector>) -> Result<()> {
    let parts = upgrade.await?.downcast::<TokioIo<TcpStream>>();
    let parts = parts.map_err(|_| anyhow!("not a connection of this server"))?;
    let stream = parts.io.into_inner().into_std()?;
    stream.set_nonblocking(false)?;
    let reader = Cursor::new(parts.read_buf).chain(stream.try_clone()?);
    thread::spawn(move || port_forward::serve(stream, reader, port, &connector));
    Ok(())
}
