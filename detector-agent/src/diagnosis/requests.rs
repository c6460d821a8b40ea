//! Requests of the collectors, which wait for their answers.

use std::{io, time::Duration};

use ::kube::Client;
use tokio::{
    runtime::Runtime,
    time::{Instant, timeout},
};

use crate::{
    kube_client::{KubeClient, NOT_USED},
    process::token_bucket::TokenBucket,
};

/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Requests to the API server at once, and the time after which one more is allowed: a pod can cause findings.
const BURST: u32 = 32;
const REFILL: Duration = Duration::from_secs(2);

/// Sends bounded requests.
#[derive(Debug)]
pub(super) struct Requests {
    runtime: Runtime,
    kube: Option<KubeClient>,
    budget: TokenBucket<Instant>,
}

impl Requests {
    /// # Errors
    /// If the system refuses the resources of a tokio runtime.
    pub(super) fn new(kube: Option<KubeClient>) -> io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        Ok(Self {
            runtime: builder.enable_all().build()?,
            kube,
            budget: TokenBucket::new(BURST, REFILL, Instant::now()),
        })
    }

    /// The answer of the API server.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn kube<T>(
        &mut self,
        request: impl AsyncFnOnce(Client) -> Result<T, String>,
    ) -> Result<T, String> {
        let Some(kube) = &self.kube else {
            return Err(NOT_USED.to_owned());
        };
        if !self.budget.try_take(Instant::now()) {
            return Err("too many findings are being explained at once".to_owned());
        }
        let answer = async {
            let (client, _) = kube.connect().await.map_err(|error| error.to_string())?;
            request(client).await
        };
        self.wait_for(answer)
    }

    /// [`KubeClient::cluster_identity`].
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn cluster_identity(&self) -> Result<String, String> {
        let Some(kube) = &self.kube else {
            return Err(NOT_USED.to_owned());
        };
        let identity = kube.cluster_identity();
        self.wait_for(async { identity.await.map_err(|error| error.to_string()) })
    }

    /// The outcome of something that waits.
    ///
    /// # Errors
    /// Its own error, or that it took too long.
    pub(super) fn wait_for<T>(
        &self,
        answer: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let answer = self
            .runtime
            .block_on(async { timeout(PATIENCE, answer).await });
        answer.unwrap_or_else(|_| Err(format!("no response within {PATIENCE:?}")))
    }
}
