//! Runs the classifier in the kernel on a frame, without any device (`BPF_PROG_TEST_RUN`): for tests, fuzzing and benchmarks.
//!
//! The frame appears to arrive on loopback. A VLAN tag, which a real ingress keeps outside the frame, stays inside.

use std::time::Duration;

use aya::programs::{ProgramError, ProgramInfo, SchedClassifier, TestRun, TestRunOptions};

use super::Programs;

/// Result of a test run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestRunResult {
    /// The return value; -1 lets the packet pass.
    pub verdict: i32,
    /// Average duration of one run.
    pub each: Duration,
}

/// The test run failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot test-run the program: {0}")]
pub struct TestRunError(#[from] ProgramError);

impl Programs {
    /// Runs the classifier `repeat` times on a frame of at least 14 bytes.
    ///
    /// # Errors
    /// The kernel refuses the frame.
    pub fn test_run(&mut self, frame: &[u8], repeat: u32) -> Result<TestRunResult, TestRunError> {
        let (program, _) = self.classifier().ok_or(ProgramError::NotLoaded)?;
        test_run(program, frame, repeat)
    }

    /// Size in bytes of each program, by name, after the verifier's rewrites, which include the removal of dead code.
    ///
    /// # Errors
    /// The kernel does not return the information.
    pub fn translated_sizes(&self) -> Result<Vec<(String, u32)>, TestRunError> {
        self.of_each_program(ProgramInfo::size_translated)
    }

    /// How many instructions the verifier processed for each program, by name; 0 before Linux 5.16.
    ///
    /// # Errors
    /// The kernel does not return the information.
    pub fn verified_instructions(&self) -> Result<Vec<(String, u32)>, TestRunError> {
        self.of_each_program(ProgramInfo::verified_instruction_count)
    }

    fn of_each_program(
        &self,
        number: impl Fn(&ProgramInfo) -> Option<u32>,
    ) -> Result<Vec<(String, u32)>, TestRunError> {
        let mut numbers = Vec::new();
        for (name, program) in self.ebpf.programs() {
            let number = number(&program.info()?).unwrap_or_default();
            numbers.push((name.to_owned(), number));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// Runs a classifier as [`Programs::test_run`] does.
///
/// # Errors
/// The kernel refuses the frame, or the program is not loaded.
pub fn test_run(
    program: &SchedClassifier,
    frame: &[u8],
    repeat: u32,
) -> Result<TestRunResult, TestRunError> {
    let mut options = TestRunOptions::new();
    options.data_in = Some(frame);
    options.repeat = repeat;
    let result = program.test_run(options)?;
    Ok(TestRunResult {
        verdict: result.return_value.cast_signed(),
        each: result.duration,
    })
}
