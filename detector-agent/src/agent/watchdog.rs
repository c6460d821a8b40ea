//! Ends an agent whose event loop hangs, so that its supervisor (kubelet, systemd) restarts it. A liveness probe of its port
//! would ask whichever process holds the port.

use std::time::Duration;

use tokio::time::sleep;

use crate::health::Health;

const INTERVAL: Duration = Duration::from_secs(10);
/// Successive observations of a stuck event loop after which it is given up. One alone may mean that the whole process, or the
/// machine, was stopped for a while.
const OBSERVATIONS: u32 = 6;

/// Returns once the event loop has been stuck for long, with the time since its last heartbeat.
pub(super) async fn stuck(health: &Health) -> Duration {
    let mut observed = 0;
    loop {
        sleep(INTERVAL).await;
        match health.stuck_for() {
            Some(silent) if observed + 1 >= OBSERVATIONS => return silent,
            Some(_) => observed += 1,
            None => observed = 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use detector_engine::Timestamp;
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_lasting_silence_of_the_event_loop_ends_the_agent() {
        let health = Health::default();
        let hour = Duration::from_secs(3600);
        // Virtual time passes; the heartbeat is as new as before.
        assert!(timeout(hour, stuck(&health)).await.is_err());
        health.beat(Timestamp(0));
        let begun = Instant::now();
        stuck(&health).await;
        assert_eq!(begun.elapsed(), INTERVAL * OBSERVATIONS);
    }
}
