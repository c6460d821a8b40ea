//! Waiting with a deadline: [`until`] polls a condition; [`Monitor`] sleeps until another thread of this process changes
//! shared state.

use std::{
    fmt,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

/// Bounds of the pause between two checks; in between it is a tenth of the time waited so far.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Polls `check` until it returns `Ok`, and returns that value.
///
/// An `Err` of `check` means "not yet": `bail!`, `ensure!` and `?` all lead to another try. `what` completes the sentence
/// "timed out waiting for …" and names the awaited condition, such as `"the alert to be silenced"`. `check` runs at least
/// once. An outcome that no further try can change is returned as `Ok(Err(…))`.
///
/// Tests unwrap the result, so that the panic is at the call and names the condition and the last failure:
///
/// ```
/// # use detector_testkit::{DEADLINE, until};
/// # let published = || Some("10.0.0.1");
/// use anyhow::Context as _;
/// let address = until(DEADLINE, "the address to be published", || {
///     published().context("no address yet")
/// })
/// .unwrap();
/// # assert_eq!(address, "10.0.0.1");
/// ```
///
/// # Errors
/// `check` still fails `deadline` after the call; the error names `what` and holds the last failure.
pub fn until<T>(
    deadline: Duration,
    what: impl fmt::Display,
    mut check: impl FnMut() -> Result<T>,
) -> Result<T> {
    let started = Instant::now();
    loop {
        let failure = match check() {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        let waited = started.elapsed();
        if waited >= deadline {
            return Err(failure.context(timed_out(deadline, what)));
        }
        thread::sleep((waited / 10).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
    }
}

/// State that several threads of this process share, and that one can wait for.
#[derive(Debug, Default)]
pub(crate) struct Monitor<S> {
    state: Mutex<S>,
    changed: Condvar,
}

impl<S> Monitor<S> {
    /// Locks the state for reading. Changes go through [`Monitor::update`], which wakes the waiting threads.
    pub(crate) fn lock(&self) -> MutexGuard<'_, S> {
        lock(&self.state)
    }

    /// Changes the state and wakes all waiting threads.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut S) -> T) -> T {
        let value = change(&mut self.lock());
        self.changed.notify_all();
        value
    }

    /// Releases the lock until the state changes, at most for `longest`; may also return without a change.
    pub(crate) fn wait_change<'s>(
        &self,
        guard: MutexGuard<'s, S>,
        longest: Duration,
    ) -> MutexGuard<'s, S> {
        self.changed
            .wait_timeout(guard, longest)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    /// Waits until `check` accepts the state.
    ///
    /// # Errors
    /// The deadline passes; the error names `what` and holds the description of the state by `describe`.
    pub(crate) fn wait<T>(
        &self,
        deadline: Duration,
        what: impl fmt::Display,
        mut check: impl FnMut(&S) -> Option<T>,
        describe: impl FnOnce(&S) -> String,
    ) -> Result<T> {
        let end = Instant::now() + deadline;
        let mut state = self.lock();
        loop {
            if let Some(value) = check(&state) {
                return Ok(value);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(anyhow!(describe(&state)).context(timed_out(deadline, what)));
            }
            state = self.wait_change(state, left);
        }
    }
}

/// Locks a mutex, even after a panic of another holder: the thread that panicked fails the test.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn timed_out(deadline: Duration, what: impl fmt::Display) -> String {
    format!("timed out after {deadline:?} waiting for {what}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::{sync::Arc, thread, time::Duration};

    use anyhow::{Result, ensure};

    use super::{Monitor, until};

    #[test]
    fn until_retries_failures() {
        let mut tries = 0;
        let value = until(Duration::from_secs(10), "three tries", || {
            tries += 1;
            ensure!(tries == 3, "only {tries}");
            Ok(tries)
        });
        assert_eq!(value.unwrap(), 3);
    }

    #[test]
    fn timeout_names_condition_and_last_failure() {
        let outcome: Result<()> = until(Duration::ZERO, "the impossible", || {
            anyhow::bail!("still impossible")
        });
        assert_eq!(
            format!("{:#}", outcome.unwrap_err()),
            "timed out after 0ns waiting for the impossible: still impossible"
        );
    }

    #[test]
    fn monitor_wakes_on_update() {
        let monitor = Arc::<Monitor<u32>>::default();
        let other = Arc::clone(&monitor);
        let thread = thread::spawn(move || other.update(|count| *count += 1));
        let wait = |deadline, wanted| {
            let check = |count: &u32| (*count == wanted).then_some(*count);
            monitor.wait(deadline, "the count", check, |count| format!("at {count}"))
        };
        assert_eq!(wait(Duration::from_secs(60), 1).unwrap(), 1);
        thread.join().unwrap();
        let error = wait(Duration::ZERO, 2).unwrap_err();
        assert!(format!("{error:#}").ends_with("at 1"), "{error:#}");
    }
}
