//! Running a program in the kernel on a frame, without any device (`BPF_PROG_TEST_RUN`): for tests, fuzzing and benches.
//!
//! The frame seems to come in on loopback. A tag that a real ingress would hold apart stays in the frame.

use std::time::Duration;

use aya::programs::{ProgramError, SchedClassifier, TestRun, TestRunOptions};

use super::{Programs, leftovers::PROGRAM};

/// A classifier that does nothing, to compare with.
const EMPTY: &str = "ipconflict_empty";

/// Which program to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The one on pod devices.
    ArpNdp,
    /// One that does nothing.
    Empty,
}

/// What a program did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// What it returned: -1 is "go on".
    pub verdict: i32,
    /// What one run took, on average.
    pub each: Duration,
}

/// The trial could not be made.
#[derive(Debug, thiserror::Error)]
#[error("the kernel did not run the program: {0}")]
pub struct TrialError(#[from] ProgramError);

impl Programs {
    /// Runs a program `repeat` times on a frame of at least 14 bytes.
    ///
    /// # Errors
    /// Where the kernel refuses the frame.
    pub fn trial(
        &mut self,
        subject: Subject,
        frame: &[u8],
        repeat: u32,
    ) -> Result<Trial, TrialError> {
        let name = match subject {
            Subject::ArpNdp => PROGRAM,
            Subject::Empty => EMPTY,
        };
        let program = self.ebpf.program_mut(name).ok_or(ProgramError::NotLoaded)?;
        let program: &mut SchedClassifier = program.try_into()?;
        match program.load() {
            Ok(()) | Err(ProgramError::AlreadyLoaded) => {}
            Err(error) => return Err(error.into()),
        }
        let mut options = TestRunOptions::new();
        options.data_in = Some(frame);
        options.repeat = repeat;
        let result = program.test_run(options)?;
        Ok(Trial {
            verdict: result.return_value.cast_signed(),
            each: result.duration,
        })
    }
}
