//! The part of the container runtime interface (CRI) in use: the agent's lookup of pods, and the pods that tests create.

mod messages;

use std::path::Path;

use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::{
    Request, Status,
    client::Grpc,
    transport::{Channel, Endpoint, Error},
};
use tonic_prost::ProstCodec;
use tower::service_fn;

pub use messages::*;

/// Longest response in bytes: a list takes some 600 per pod, a verbose status some 20,000.
const MAX_RESPONSE: usize = 16 << 20;

/// A connection to `runtime.v1.RuntimeService`; clones share it, for concurrent calls.
#[derive(Clone, Debug)]
pub struct RuntimeService {
    channel: Channel,
}

impl RuntimeService {
    /// Connects to a container runtime's socket.
    ///
    /// # Errors
    /// No connection.
    pub async fn connect(socket: &Path) -> Result<Self, Error> {
        let socket = socket.to_owned();
        let connector = service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        // The URL only fills the authority header; the connector ignores it.
        let endpoint = Endpoint::from_static("http://localhost");
        let channel = endpoint.connect_with_connector(connector).await?;
        Ok(Self { channel })
    }

    /// Calls a method.
    ///
    /// # Errors
    /// The runtime's status, or one whose source is why there was no response.
    pub async fn call<Q, R>(&self, method: &str, request: Q) -> Result<R, Status>
    where
        Q: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let path = format!("/runtime.v1.RuntimeService/{method}");
        let path = PathAndQuery::try_from(path).map_err(|e| Status::from_error(e.into()))?;
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_RESPONSE);
        grpc.ready()
            .await
            .map_err(|error| Status::from_error(error.into()))?;
        let codec = ProstCodec::<Q, R>::default();
        let response = grpc.unary(Request::new(request), path, codec).await?;
        Ok(response.into_inner())
    }
}
