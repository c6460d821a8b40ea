//! Turns the flags into the options of each part.

use std::time::Duration;

use detector_engine::{AnomalyRules, Settings};

use super::AgentError;
use crate::{
    cli::RunArgs,
    http,
    observe::ebpf::EbpfOptions,
    persist::{
        history::{History, HistoryBounds},
        store::Store,
    },
    pods::PathSetting,
    process::{instance::Instance, logging, node},
    sinks::lines::Lines,
};

/// The event lines, with `--events`.
pub(super) fn lines(args: &RunArgs) -> Result<Option<Lines>, AgentError> {
    let Some(path) = &args.events else {
        return Ok(None);
    };
    let lines = if path.as_os_str() == "-" {
        Lines::stdout()
    } else {
        Lines::file(path)
    };
    lines.map(Some).map_err(|source| AgentError::Events {
        path: path.display().to_string(),
        source,
    })
}

pub(super) fn http(args: &RunArgs, instance: &Instance) -> http::Options {
    http::Options {
        socket: instance.socket(),
        listen: args.listen,
        metrics_listen: args.metrics_listen,
        token_file: args.http_token_file.clone(),
        tls_chain: args.tls_cert.clone(),
        tls_key: args.tls_key.clone(),
    }
}

/// The history, stored with `--state-dir`.
pub(super) fn history(args: &RunArgs) -> History {
    match &args.state_dir {
        Some(directory) => {
            let bounds = HistoryBounds {
                entries: args.history_entries as usize,
                age: args.history_age,
            };
            History::stored(Store::history_at(directory), bounds)
        }
        None => History::default(),
    }
}

pub(super) fn ebpf(args: &RunArgs) -> EbpfOptions {
    EbpfOptions {
        ring_bytes: args.ring_bytes,
        attach: args.attach,
        btf: args.btf.clone(),
        // A live claim is published again well before it expires.
        republish_after: EbpfOptions::default()
            .republish_after
            .min(args.claim_ttl / 2),
        shared: args.common.allow.clone(),
        kernel_log: logging::kernel_log(args.kernel_log),
        ..EbpfOptions::default()
    }
}

/// A CNI result is written some 12 ms after its device appeared; a plugin that is slow to answer takes longer.
const CNI_NETWORK_WAIT: Duration = Duration::from_secs(2);

/// A conflict that more and more pods join is a few events.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn engine(args: &RunArgs) -> Settings {
    Settings {
        allow: args.common.allow.clone(),
        claim_ttl: args.claim_ttl,
        flap_moves: args.flap_moves as usize,
        flap_window: args.flap_window,
        id_seed: node::random(),
        update_interval: UPDATE_INTERVAL,
        cni_network_wait: match args.common.pods.cni_cache_dir {
            PathSetting::At(_) => CNI_NETWORK_WAIT,
            PathSetting::Off => Duration::ZERO,
        },
        anomalies: AnomalyRules {
            leak_after: args.common.ipam.ipam_leak_after,
            ..AnomalyRules::default()
        },
        ..Settings::default()
    }
}
