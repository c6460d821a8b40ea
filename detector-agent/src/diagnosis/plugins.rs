//! When the network plugins on the node were started.

use detector_engine::diagnosis::{Known, PluginEnd, PluginStart, Source, UnixTime};

use super::files::{not_checked, unix_timestamp};
use crate::pods::{PluginContainer, PluginPods};

/// Most starts that are facts.
const MAX_STARTS: usize = 32;
const NOT_LISTED: &str =
    "the Kubernetes API has not listed the node's pods; it is enabled with --kube";

/// The starts of all network plugins' containers.
pub(super) fn starts(plugins: &PluginPods) -> Known<Vec<PluginStart>> {
    let Some(pods) = plugins.get() else {
        return not_checked("the starts of the network plugin", NOT_LISTED);
    };
    let source = Source::KubernetesObject("pods of network plugins".to_owned());
    let starts = pods.iter().flat_map(|pod| {
        let containers = pod.containers.iter();
        containers.filter_map(|container| {
            Some(start(
                &pod.name,
                container,
                unix_timestamp(container.started?)?,
            ))
        })
    });
    let starts: Vec<_> = starts.take(MAX_STARTS).collect();
    match starts.is_empty() {
        true => Known::Absent(source),
        false => Known::Value(starts, source),
    }
}

fn start(pod: &str, container: &PluginContainer, at: UnixTime) -> PluginStart {
    let ended = container.ended.as_ref();
    PluginStart {
        pod: pod.to_owned(),
        container: container.name.clone(),
        at,
        restarts: container.restarts,
        end_before: ended.and_then(|(at, why)| {
            Some(PluginEnd {
                at: unix_timestamp(*at)?,
                why: why.clone(),
            })
        }),
    }
}

/// The start of the container that has the name of its DaemonSet; `what` it runs.
pub(super) fn last_start(plugins: &PluginPods, daemon_set: &str, what: &str) -> Known<UnixTime> {
    let what = format!("the start of {what}");
    let Some(pods) = plugins.get() else {
        return not_checked(what, NOT_LISTED);
    };
    let pods = pods.iter().filter(|pod| pod.daemon_set == daemon_set);
    let last = pods
        .filter_map(|pod| {
            let mut containers = pod.containers.iter();
            let container = containers.find(|container| container.name == daemon_set)?;
            Some((unix_timestamp(container.started?)?, &pod.name))
        })
        .max();
    match last {
        Some((at, pod)) => Known::Value(at, Source::KubernetesObject(format!("pod {pod}"))),
        None => not_checked(what, format!("no pod of {daemon_set} runs on the node")),
    }
}
