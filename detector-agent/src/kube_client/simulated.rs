//! The testkit's API server inside the process, for tests of what many agents ask of one in simulated time.

use std::ops::Deref;

use ::kube::{Client, client::Body};
use detector_testkit::kube_api::ApiServer;
pub(crate) use detector_testkit::kube_api::Failure;
use http_body_util::Limited;
use hyper::Request;

/// The server. Its copies are the same server.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimulatedApi(ApiServer);

impl Deref for SimulatedApi {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.0
    }
}

impl SimulatedApi {
    /// A new connection on which a response has at most so many bytes.
    pub(crate) fn bounded_client(&self, max_body: usize) -> Client {
        let server = self.0.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.map_err(std::io::Error::other)?;
                let response = server.respond(Request::from_parts(parts, body)).await?;
                std::io::Result::Ok(response.map(|body| Limited::new(body, max_body)))
            }
        });
        Client::new(service, "default")
    }
}
