//! Starts the sinks that send over the network, and stops them with a deadline.

use std::{future::Future, sync::Arc, time::Duration};

use detector_event::Role;
use tokio::{runtime::Handle, sync::watch, task::JoinSet, time::timeout};
use tracing::warn;

use super::{
    EventSink,
    alertmanager::Alertmanager,
    outbox::{Outbox, OutboxBounds, OutboxError, SinkSpec},
    settings::SinkSettings,
    unusable::FileCheck,
    webhook::{Webhook, sender::Sender},
};
use crate::{health::Health, metrics::Metrics, persist::store::Store};

/// Why the sinks cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SinksError {
    /// The outbox.
    #[error(transparent)]
    Outbox(#[from] OutboxError),
}

/// The running senders.
#[derive(Debug)]
pub struct Senders {
    outbox: Option<Outbox>,
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Senders {
    /// Starts a sender for every sink and returns the sinks for the event loop. Without a `store`, undelivered events
    /// are lost when the process ends. A sink whose files cannot be used sends nothing until they can.
    ///
    /// # Errors
    /// See [`SinksError`].
    pub fn start(
        sinks: &SinkSettings,
        store: Option<&Arc<Store>>,
        metrics: &Arc<Metrics>,
        health: &Health,
        runtime: &Handle,
    ) -> Result<(Self, Vec<Box<dyn EventSink>>), SinksError> {
        let (stop, stopped) = watch::channel(false);
        let mut senders = Self {
            outbox: None,
            tasks: JoinSet::new(),
            stop,
        };
        let mut event_sinks: Vec<Box<dyn EventSink>> = Vec::new();
        if !sinks.webhooks.is_empty() {
            let outbox = outbox(sinks, store, metrics, health)?;
            event_sinks.push(Box::new(outbox.sink()));
            for (settings, sink_queue) in sinks.webhooks.iter().zip(outbox.sink_queues()) {
                let webhook = Arc::new(Webhook::new(settings, sinks.status_page_url.clone()));
                let part = health.part(Role::Sink, settings.name.as_str());
                let files = {
                    let webhook = Arc::clone(&webhook);
                    FileCheck::new(&settings.name, metrics, part.clone(), move || {
                        webhook.check()
                    })
                };
                let (sink_queue, retry) = (Arc::clone(sink_queue), settings.retry);
                let stopped = stopped.clone();
                senders.spawn(runtime, async move {
                    if files.wait(stopped.clone()).await {
                        let random = fastrand::Rng::new();
                        let sender = Sender::new(sink_queue, webhook, retry, random, part);
                        sender.run(stopped).await;
                    }
                });
            }
            senders.outbox = Some(outbox);
        }
        for settings in &sinks.alertmanagers {
            let part = health.part(Role::Sink, settings.name.as_str());
            let (task, sink) = Alertmanager::new(
                settings,
                sinks.status_page_url.clone(),
                metrics,
                part.clone(),
            );
            event_sinks.push(Box::new(sink));
            let client = task.client();
            let files = FileCheck::new(&settings.name, metrics, part, move || client.check());
            let stopped = stopped.clone();
            senders.spawn(runtime, async move {
                if files.wait(stopped.clone()).await {
                    task.run(stopped).await;
                }
            });
        }
        Ok((senders, event_sinks))
    }

    /// Sends what can be sent within `deadline`; the rest stays stored. To be called once no more events follow.
    pub async fn stop(mut self, deadline: Duration) {
        // The last events are stored, and so available to the senders, before these are stopped.
        let flushed = async {
            if let Some(outbox) = &self.outbox {
                outbox.sync().await;
                outbox.close_windows();
            }
            // It fails if there is no sender.
            let _ = self.stop.send(true);
            while self.tasks.join_next().await.is_some() {}
        };
        if timeout(deadline, flushed).await.is_err() {
            warn!(
                "not every event could be delivered before shutdown; stored ones are sent after the next start"
            );
        }
        if let Some(outbox) = self.outbox.take()
            && !outbox.stop(deadline)
        {
            warn!("the outbox did not stop in time: the disk is slow");
        }
    }

    fn spawn(&mut self, runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, runtime);
    }
}

fn outbox(
    sinks: &SinkSettings,
    store: Option<&Arc<Store>>,
    metrics: &Arc<Metrics>,
    health: &Health,
) -> Result<Outbox, SinksError> {
    let store = if let Some(store) = store {
        Arc::clone(store)
    } else {
        warn!(
            "webhooks are configured without --state-dir: undelivered events are lost when the agent stops; set --state-dir to keep them"
        );
        Arc::new(Store::in_memory())
    };
    let specs = sinks
        .webhooks
        .iter()
        .map(|settings| SinkSpec {
            name: settings.name.clone(),
            filter: settings.only.clone(),
            window: settings.format.window(),
        })
        .collect();
    let part = health.part(Role::Sink, "outbox");
    Ok(Outbox::start(
        &store,
        specs,
        OutboxBounds::default(),
        metrics,
        part,
    )?)
}
