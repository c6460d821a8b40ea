//! One event a line to stdout or a file, written from the detection thread without ever blocking it.
//!
//! Invariants: lines come out whole and in order; a reader that does not read costs at most [`BACKLOG`] bytes, then the
//! newest lines are dropped and counted; a pipe is written only when the kernel says that there is room.

use std::{
    collections::VecDeque,
    fs::{File, OpenOptions},
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Bytes kept for a slow reader.
const BACKLOG: usize = 16 << 20;
/// A pipe that polls as writable takes this much without blocking (`PIPE_BUF`).
const CHUNK: usize = 4096;

/// Where the lines go.
#[derive(Debug)]
pub struct Lines {
    out: File,
    /// Regular files never block for a reader, and cannot be polled.
    regular: bool,
    backlog: VecDeque<u8>,
    broken: bool,
}

/// What became of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is out, or waits in order.
    Accepted,
    /// The backlog is full, or nobody can read any more (see [`Lines::has_ended`]).
    Dropped,
}

impl Lines {
    /// Standard output.
    ///
    /// # Errors
    /// Where the descriptor cannot be duplicated.
    pub fn stdout() -> io::Result<Self> {
        Self::new(File::from(io::stdout().as_fd().try_clone_to_owned()?))
    }

    /// Appends to a file, which is created where it is missing.
    ///
    /// # Errors
    /// Where it cannot be opened.
    pub fn file(path: &Path) -> io::Result<Self> {
        Self::new(OpenOptions::new().create(true).append(true).open(path)?)
    }

    fn new(out: File) -> io::Result<Self> {
        let regular = out.metadata()?.is_file();
        Ok(Self {
            out,
            regular,
            backlog: VecDeque::new(),
            broken: false,
        })
    }

    /// Whether lines wait for the reader; then call [`Lines::flush`] when the descriptor is writable.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.backlog.is_empty() && !self.broken
    }

    /// Whether nothing is written any more since an error.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.broken
    }

    /// Takes one line, without its end.
    ///
    /// # Errors
    /// Once, when the reader is gone or the disk is full: nothing more is written then.
    pub fn write(&mut self, line: &str) -> io::Result<Written> {
        if self.broken || self.backlog.len() + line.len() >= BACKLOG {
            return Ok(Written::Dropped);
        }
        self.backlog.extend(line.as_bytes());
        self.backlog.push_back(b'\n');
        self.flush()?;
        Ok(Written::Accepted)
    }

    /// Writes what there is room for.
    ///
    /// # Errors
    /// As [`Lines::write`].
    pub fn flush(&mut self) -> io::Result<()> {
        while self.is_waiting() && (self.regular || self.has_room()) {
            let (front, _) = self.backlog.as_slices();
            let piece = if self.regular {
                front
            } else {
                &front[..front.len().min(CHUNK)]
            };
            match self.out.write(piece) {
                Ok(written) => drop(self.backlog.drain(..written)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => {
                    self.broken = true;
                    self.backlog.clear();
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        let mut fds = [PollFd::new(self.out.as_fd(), PollFlags::POLLOUT)];
        // An error or a hang-up counts as room: the write then tells what is wrong.
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
    fn a_reader_that_does_not_read_blocks_nothing_and_gets_all_lines_later() {
        let (reader, writer) = io::pipe().unwrap();
        let mut lines = Lines::new(File::from(std::os::fd::OwnedFd::from(writer))).unwrap();
        let long = "x".repeat(10_000);
        for _ in 0..100 {
            assert_eq!(lines.write(&long).unwrap(), Written::Accepted);
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
    fn a_gone_reader_is_told_once_and_then_lines_are_dropped() {
        let (reader, writer) = io::pipe().unwrap();
        let mut lines = Lines::new(File::from(std::os::fd::OwnedFd::from(writer))).unwrap();
        drop(reader);
        assert!(lines.write("a").is_err());
        assert_eq!(lines.write("b").unwrap(), Written::Dropped);
    }

    #[test]
    fn a_full_backlog_drops_the_newest() {
        let (_reader, writer) = io::pipe().unwrap();
        let mut lines = Lines::new(File::from(std::os::fd::OwnedFd::from(writer))).unwrap();
        let long = "x".repeat(BACKLOG / 4);
        let outcomes: Vec<_> = (0..6).map(|_| lines.write(&long).unwrap()).collect();
        assert_eq!(
            outcomes.iter().filter(|o| **o == Written::Dropped).count(),
            2
        );
    }
}
