//! Everything that sends: built from the configuration, started on the runtime, stopped with a deadline.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{runtime::Handle, sync::watch, task::JoinSet, time::timeout};
use tracing::warn;

use super::{
    EventSink,
    alertmanager::Alertmanager,
    client::RequestError,
    outbox::{Outbox, OutboxBounds, OutboxError, SinkSpec},
    settings::SinkSettings,
    webhook::{Webhook, WebhookError, sender::Sender},
};
use crate::metrics::Metrics;
use crate::{
    health::{Health, Role},
    persist::store::Store,
};

/// Why nothing can be sent.
#[derive(Debug, thiserror::Error)]
pub enum SinksError {
    /// Files that the configuration names.
    #[error("cannot use {} of the configured sinks:\n  {}", .0.len(), .0.join("\n  "))]
    Unusable(Vec<String>),
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
    /// Starts a sender for every sink. Gives what the detection thread feeds. Without a `store`, events that are not
    /// delivered yet end with the process.
    ///
    /// # Errors
    /// As [`SinksError`] says; of the sinks' files all that is wrong is told at once.
    pub fn start(
        sinks: &SinkSettings,
        store: Option<&Arc<Store>>,
        metrics: &Arc<Metrics>,
        health: &Health,
        runtime: &Handle,
    ) -> Result<(Self, Vec<Box<dyn EventSink>>), SinksError> {
        let webhooks: Vec<_> = sinks
            .webhooks
            .iter()
            .map(|settings| Arc::new(Webhook::new(settings)))
            .collect();
        let mut wrong = Vec::new();
        for (settings, webhook) in sinks.webhooks.iter().zip(&webhooks) {
            if let Err(why) = webhook.check() {
                wrong.push(unusable::<WebhookError>(&settings.name, &why));
            }
        }
        let mut alertmanagers = Vec::new();
        for settings in &sinks.alertmanagers {
            let part = health.part(Role::Sink, format!("alertmanager {}", settings.name));
            match Alertmanager::new(settings, metrics, part) {
                Ok(both) => alertmanagers.push(both),
                Err(why) => wrong.push(unusable::<RequestError>(&settings.name, &why)),
            }
        }
        if !wrong.is_empty() {
            return Err(SinksError::Unusable(wrong));
        }
        let (stop, stopped) = watch::channel(false);
        let mut senders = Self {
            outbox: None,
            tasks: JoinSet::new(),
            stop,
        };
        let mut fed: Vec<Box<dyn EventSink>> = Vec::new();
        if !webhooks.is_empty() {
            let outbox = outbox(sinks, store, metrics, health)?;
            fed.push(Box::new(outbox.sink()));
            for ((settings, webhook), sink_queue) in sinks
                .webhooks
                .iter()
                .zip(webhooks)
                .zip(outbox.sink_queues())
            {
                let random = fastrand::Rng::new();
                let part = health.part(Role::Sink, format!("webhook {}", settings.name));
                let sender = Sender::new(
                    Arc::clone(sink_queue),
                    webhook,
                    settings.retry,
                    random,
                    part,
                );
                senders.spawn(runtime, sender.run(stopped.clone()));
            }
            senders.outbox = Some(outbox);
        }
        for (task, sink) in alertmanagers {
            fed.push(Box::new(sink));
            senders.spawn(runtime, task.run(stopped.clone()));
        }
        Ok((senders, fed))
    }

    /// Sends what can be sent within `deadline`; the rest stays stored. Call it when nothing is offered any more.
    pub async fn stop(mut self, deadline: Duration) {
        // What was offered last is stored, and so handed to the senders, before they are told to end.
        let flushed = async {
            if let Some(outbox) = &self.outbox {
                outbox.sync().await;
            }
            // Nobody listens where there is no sender.
            let _ = self.stop.send(true);
            while self.tasks.join_next().await.is_some() {}
        };
        if timeout(deadline, flushed).await.is_err() {
            warn!(
                "not everything could be delivered before the end; what is stored goes out after the next start"
            );
        }
        if let Some(outbox) = self.outbox.take()
            && !outbox.stop(deadline)
        {
            warn!("the outbox did not end in time; the disk is slow");
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
            "webhooks without --state-dir: events that are not delivered when the agent ends are lost; give a directory to keep them"
        );
        Arc::new(Store::in_memory())
    };
    let specs = sinks
        .webhooks
        .iter()
        .map(|settings| SinkSpec {
            name: settings.name.clone(),
            filter: settings.only.clone(),
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

fn unusable<E: std::fmt::Display>(name: &str, why: &E) -> String {
    format!("`{name}`: {why}")
}
