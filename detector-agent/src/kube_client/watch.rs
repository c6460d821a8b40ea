//! Watches that continue for as long as they are polled: kube's watcher, with a new connection when one is needed, delays after errors,
//! and a sign when it works again.

use std::{fmt::Debug, time::Duration};

use ::kube::{
    Api, Client, Error, Resource,
    runtime::watcher::{self, Event, watcher},
};
use futures_util::{StreamExt as _, stream::BoxStream};
use http_body_util::LengthLimitError;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until};

use super::{KubeClient, KubeClientError};
use crate::process::timer::{DoublingDelay, RetryPolicy, sleep_until_some, with_jitter};

/// How long the server keeps an idle watch: between these, in seconds, so that the watches of a rollout do not end
/// together. The client allows for 295.
const WATCH_SECONDS: std::ops::RangeInclusive<u32> = 240..=290;
/// The delays after errors.
const DELAYS: RetryPolicy = RetryPolicy {
    first: Duration::from_millis(500),
    longest: Duration::from_secs(30),
};
/// A watch that had an error counts as working again after this long without another: a resumed watch is silent until
/// something changes.
const RECOVERY: Duration = Duration::from_secs(2);

/// What a watch reports.
#[derive(Debug)]
pub(crate) enum KubeUpdate<K> {
    /// Something was listed, or has changed.
    Event(Event<K>),
    /// It has had no further error since it was resumed.
    Works,
    /// It does not work, and is tried again after a delay.
    Failed(WatchError),
}

/// Why a watch does not work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchError {
    /// There is no client.
    #[error(transparent)]
    Connect(#[from] KubeClientError),
    /// The server's answer.
    #[error(transparent)]
    Watch(#[from] watcher::Error),
}

impl WatchError {
    /// The server's status code, if there is one.
    pub(crate) fn status_code(&self) -> Option<u16> {
        match self {
            Self::Watch(
                watcher::Error::InitialListFailed(Error::Api(status))
                | watcher::Error::WatchStartFailed(Error::Api(status))
                | watcher::Error::WatchFailed(Error::Api(status))
                | watcher::Error::WatchError(status),
            ) => Some(status.code),
            _ => None,
        }
    }

    /// Whether a response was longer than its bound.
    pub(crate) fn is_too_long(&self) -> bool {
        let error: &(dyn std::error::Error + 'static) = self;
        std::iter::successors(Some(error), |error| error.source())
            .any(|error| error.is::<LengthLimitError>())
    }

    /// Whether a list failed, or cannot be requested.
    pub(crate) const fn is_of_list(&self) -> bool {
        matches!(
            self,
            Self::Connect(_) | Self::Watch(watcher::Error::InitialListFailed(_))
        )
    }
}

/// A watch: begins with a list from the server's watch cache, which costs etcd nothing, and continues from bookmarks.
pub(crate) struct Watch<K> {
    kube: KubeClient,
    max_body: usize,
    make_api: Box<dyn Fn(Client) -> Api<K> + Send>,
    config: watcher::Config,
    connection: Option<Connection<K>>,
    delay: DoublingDelay,
    retry_at: Instant,
    works_at: Option<Instant>,
    random: fastrand::Rng,
}

struct Connection<K> {
    server: String,
    api: Api<K>,
    events: BoxStream<'static, watcher::Result<Event<K>>>,
}

impl<K> Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// A watch on what the selectors of `config` select, with a bound for each response, in bytes. It connects when it is polled.
    pub(crate) fn new(
        kube: KubeClient,
        max_body: usize,
        make_api: impl Fn(Client) -> Api<K> + Send + 'static,
        config: watcher::Config,
    ) -> Self {
        let config = watcher::Config {
            // The client would drop the resource version of a list with pages, which the cache does not have.
            page_size: None,
            ..config.any_semantic()
        };
        Self {
            kube,
            max_body,
            make_api: Box::new(make_api),
            config,
            connection: None,
            delay: DoublingDelay::new(DELAYS),
            retry_at: Instant::now(),
            works_at: None,
            random: fastrand::Rng::new(),
        }
    }

    /// What it does next. May be cancelled at any time.
    pub(crate) async fn next(&mut self) -> KubeUpdate<K> {
        loop {
            sleep_until(self.retry_at).await;
            let Some(connection) = &mut self.connection else {
                if let Err(error) = self.connect().await
                    && let Some(update) = self.failed(error.into())
                {
                    return update;
                }
                continue;
            };
            let event = tokio::select! {
                event = connection.events.next() => event,
                () = sleep_until_some(self.works_at) => {
                    self.works_at = None;
                    return KubeUpdate::Works;
                }
            };
            match event {
                Some(Ok(event)) => {
                    // A list may begin and fail again and again.
                    if !matches!(event, Event::Init | Event::InitApply(_)) {
                        self.delay.reset();
                    }
                    return KubeUpdate::Event(event);
                }
                Some(Err(error)) => {
                    if let Some(update) = self.failed(error.into()) {
                        return update;
                    }
                }
                None => self.connection = None,
            }
        }
    }

    /// The server's URL, once there was a connection.
    pub(crate) fn server(&self) -> Option<&str> {
        let connection = self.connection.as_ref();
        connection.map(|connection| connection.server.as_str())
    }

    /// The resource through the present connection.
    pub(crate) fn api(&self) -> Option<Api<K>> {
        let connection = self.connection.as_ref();
        connection.map(|connection| connection.api.clone())
    }

    /// Objects on a page; `None`: lists come from the watch cache, which has no pages.
    pub(crate) const fn page_size(&self) -> Option<u32> {
        self.config.page_size
    }

    /// Sets the size of pages for the lists of the next connection.
    pub(crate) const fn set_page_size(&mut self, objects: Option<u32>) {
        self.config.page_size = objects;
    }

    /// Lists again with another connection, after this time.
    pub(crate) fn restart_in(&mut self, delay: Duration) {
        self.connection = None;
        self.retry_at = Instant::now() + delay;
    }

    /// As if its list had failed with this error.
    pub(crate) fn list_failed(&mut self, error: Error) -> Option<KubeUpdate<K>> {
        self.connection = None;
        self.failed(watcher::Error::InitialListFailed(error).into())
    }

    /// Tries again after a delay. Returns what to report of it.
    fn failed(&mut self, error: WatchError) -> Option<KubeUpdate<K>> {
        let code = error.status_code();
        // 410 Gone is part of the protocol: the watcher lists again. One that is too long has lasted long, and continues.
        if code == Some(410) || error.is_too_long() && !error.is_of_list() {
            let delay = with_jitter(self.delay.current(), &mut self.random);
            self.retry_at = Instant::now() + delay;
            // The end of the next list shows that it works.
            self.works_at = self.works_at.filter(|_| code != Some(410));
            return None;
        }
        self.retry_at = Instant::now() + self.delay.advance_with_jitter(&mut self.random);
        if code == Some(401) {
            // A new client reads a rotated token.
            self.connection = None;
        }
        let is_resumed = self.connection.is_some() && !error.is_of_list();
        self.works_at = is_resumed.then(|| self.retry_at + RECOVERY);
        Some(KubeUpdate::Failed(error))
    }

    async fn connect(&mut self) -> Result<(), KubeClientError> {
        let (client, server) = self.kube.connect_bounded(self.max_body).await?;
        let api = (self.make_api)(client);
        let mut config = self.config.clone();
        config.timeout = Some(self.random.u32(WATCH_SECONDS));
        self.connection = Some(Connection {
            server,
            events: watcher(api.clone(), config).boxed(),
            api,
        });
        Ok(())
    }
}
