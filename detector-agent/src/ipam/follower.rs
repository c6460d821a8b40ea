//! The connection of a reader to the task that follows its IPAM.

use std::time::Duration;

use detector_engine::PoolId;
use tokio::sync::{mpsc, watch as latest};

/// Deadline for one read of the API.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// A server that is away for less than this changes nothing: IPAM cannot change its objects either.
pub(super) const OUTAGE: Duration = Duration::from_secs(60);

/// What the task publishes, and what is requested of it. The task ends when this is dropped, as the sender of its requests is then.
#[derive(Debug)]
pub(super) struct Follower<V, R> {
    view: latest::Receiver<V>,
    requests: mpsc::UnboundedSender<R>,
}

impl<V: Clone + Default + Send + Sync + 'static, R> Follower<V, R> {
    /// Starts the task: `run` gets what takes its views, and the requests. `changed` gets `id` with each view.
    pub(super) fn start<T: Future<Output = ()> + Send + 'static>(
        id: PoolId,
        changed: mpsc::UnboundedSender<PoolId>,
        run: impl FnOnce(Box<dyn Fn(V) + Send + Sync>, mpsc::UnboundedReceiver<R>) -> T,
    ) -> Self {
        let (requests, requested) = mpsc::unbounded_channel();
        let (published, view) = latest::channel(V::default());
        let publish = move |view| {
            // They fail once the reader is gone.
            let _ = published.send(view);
            let _ = changed.send(id);
        };
        tokio::spawn(run(Box::new(publish), requested));
        Self { view, requests }
    }

    /// What was published last.
    pub(super) fn view(&self) -> V {
        self.view.borrow().clone()
    }

    pub(super) fn request(&self, request: R) {
        // It fails once the task has ended.
        let _ = self.requests.send(request);
    }
}
