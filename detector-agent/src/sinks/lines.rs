//! One line per event to stdout or a file, written on the event loop's thread without ever blocking it.
//!
//! Invariants: lines are complete and in order; a reader that does not read costs at most [`BACKLOG`] bytes, then the
//! newest lines are dropped and counted; a pipe is only written when it polls as writable.

use std::{
    collections::VecDeque,
    fs::{File, OpenOptions},
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Bytes buffered for a slow reader.
const BACKLOG: usize = 16 << 20;
/// What a pipe that polls as writable accepts without blocking (`PIPE_BUF`).
const CHUNK: usize = 4096;

/// The destination of the lines.
#[derive(Debug)]
pub struct Lines {
    out: File,
    /// Regular files never block, and cannot be polled.
    is_regular: bool,
    backlog: VecDeque<u8>,
    failed: bool,
}

/// The outcome of writing a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It is written or buffered.
    Accepted,
    /// The backlog is full, or writing has failed (see [`Lines::has_failed`]).
    Dropped,
}

impl Lines {
    /// Standard output.
    ///
    /// # Errors
    /// If the descriptor cannot be duplicated.
    pub fn stdout() -> io::Result<Self> {
        Self::new(File::from(io::stdout().as_fd().try_clone_to_owned()?))
    }

    /// Appends to a file, which is created if it is missing.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn file(path: &Path) -> io::Result<Self> {
        Self::new(OpenOptions::new().create(true).append(true).open(path)?)
    }

    fn new(out: File) -> io::Result<Self> {
        let is_regular = out.metadata()?.is_file();
        Ok(Self {
            out,
            is_regular,
            backlog: VecDeque::new(),
            failed: false,
        })
    }

    /// Whether lines are buffered; then [`Lines::flush`] is to be called when the descriptor is writable.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.backlog.is_empty() && !self.failed
    }

    /// Whether nothing is written any more after an error.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Writes one line, given without its newline.
    ///
    /// # Errors
    /// Once, when the reader is gone or the disk is full; nothing more is written then.
    pub fn write(&mut self, line: &[u8]) -> io::Result<WriteOutcome> {
        if self.failed || self.backlog.len() + line.len() >= BACKLOG {
            return Ok(WriteOutcome::Dropped);
        }
        self.backlog.extend(line);
        self.backlog.push_back(b'\n');
        self.flush()?;
        Ok(WriteOutcome::Accepted)
    }

    /// Writes as much of the backlog as there is room for.
    ///
    /// # Errors
    /// As for [`Lines::write`].
    pub fn flush(&mut self) -> io::Result<()> {
        while self.is_waiting() && (self.is_regular || self.has_room()) {
            let (front, _) = self.backlog.as_slices();
            let piece = if self.is_regular {
                front
            } else {
                &front[..front.len().min(CHUNK)]
            };
            match self.out.write(piece) {
                Ok(written) => drop(self.backlog.drain(..written)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => {
                    self.failed = true;
                    self.backlog.clear();
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        let mut fds = [PollFd::new(self.out.as_fd(), PollFlags::POLLOUT)];
        // An error or a hang-up counts as room: the write then returns the error.
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for Lines {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.out.as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn a_slow_reader_blocks_nothing_and_gets_all_lines_later() {
        let (reader, writer) = io::pipe().unwrap();
        let mut lines = Lines::new(File::from(std::os::fd::OwnedFd::from(writer))).unwrap();
        let long = "x".repeat(10_000);
        for _ in 0..100 {
            assert_eq!(
                lines.write(long.as_bytes()).unwrap(),
                WriteOutcome::Accepted
            );
        }
        assert!(lines.is_waiting());
        let reader = std::thread::spawn(move || {
            BufReader::new(reader)
                .lines()
                .map_while(Result::ok)
                .collect::<Vec<_>>()
        });
        while lines.is_waiting() {
            let mut fds = [PollFd::new(lines.as_fd(), PollFlags::POLLOUT)];
            poll(&mut fds, PollTimeout::from(10_000u16)).unwrap();
            lines.flush().unwrap();
        }
        drop(lines);
        let seen = reader.join().unwrap();
        assert_eq!(seen.len(), 100);
        assert!(seen.iter().all(|l| *l == long));
    }

    #[test]
    fn a_gone_reader_is_one_error_then_lines_are_dropped() {
        let (reader, writer) = io::pipe().unwrap();
        let mut lines = Lines::new(File::from(std::os::fd::OwnedFd::from(writer))).unwrap();
        drop(reader);
        assert!(lines.write(b"a").is_err());
        assert_eq!(lines.write(b"b").unwrap(), WriteOutcome::Dropped);
    }

    #[test]
    fn a_full_backlog_drops_the_newest_lines() {
        let (_reader, writer) = io::pipe().unwrap();
        let mut lines = Lines::new(File::from(std::os::fd::OwnedFd::from(writer))).unwrap();
        let long = "x".repeat(BACKLOG / 4);
        let outcomes: Vec<_> = (0..6)
            .map(|_| lines.write(long.as_bytes()).unwrap())
            .collect();
        assert_eq!(
            outcomes
                .iter()
                .filter(|o| **o == WriteOutcome::Dropped)
                .count(),
            2
        );
    }
}
