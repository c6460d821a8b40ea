//! Starting threads. All threads of the agent are started here, so every one has a name.

use std::{
    io,
    thread::{Builder, JoinHandle},
};

/// Starts a thread. The kernel shows the first 15 bytes of its name.
///
/// # Errors
/// If the system refuses another thread.
pub fn spawn<T: Send + 'static>(
    name: &'static str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(body)
}

/// Waits for the end of a thread.
///
/// # Errors
/// If it panicked.
pub fn join<T>(thread: JoinHandle<T>) -> io::Result<T> {
    let name = thread.thread().name().unwrap_or_default().to_owned();
    thread.join().map_err(|_| {
        io::Error::other(format!(
            "thread {name} panicked; please report this as a bug"
        ))
    })
}
