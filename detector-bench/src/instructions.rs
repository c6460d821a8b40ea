//! Instructions from the ring buffer to the event line: the event loop's thread is stepped one instruction at a time from the return
//! of the wait that a pod's frame ends to the system call that writes the line. Neither the load nor the speed of the machine changes
//! the result, and no performance counter is needed, which virtual machines often do not have.
//!
//! The agent has to be optimised: without, it executes thirteen times as many.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    fs,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use detector_testkit::{Agent, AgentCommand, DEADLINE, Node};
use nix::{
    libc,
    sys::{
        ptrace::{self, Options},
        signal::Signal,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

use super::{Figure, Goal, pod_pairs::PodPairs};

const GROUP: &str = "Latency";
/// The name of the agent's thread that is stepped.
const THREAD: &str = "event-loop";
/// The bytes of a line are more than this; whatever else the thread writes wakes another thread and is shorter.
const SHORTER_THAN_A_LINE: u64 = 64;
/// How much of a processor's cache one line holds, in bytes.
const CACHE_LINE: u64 = 64;

/// The most instructions for one conflict of two pods, as measured when something was last improved. Ten per cent more is an error.
const BUDGET: usize = 28_100;

/// What the thread executed for one event.
#[derive(Clone, Debug, Default)]
pub struct Executed {
    /// The address of each instruction, in order.
    pub addresses: Vec<u64>,
}

impl Executed {
    /// How many instructions were executed.
    #[must_use]
    pub fn instructions(&self) -> usize {
        self.addresses.len()
    }

    /// How many cache lines their code takes.
    #[must_use]
    pub fn cache_lines(&self) -> usize {
        let lines: HashSet<_> = self.addresses.iter().map(|at| at / CACHE_LINE).collect();
        lines.len()
    }
}

/// Counts for `conflicts` conflicts, and compares the median with the budget.
///
/// # Errors
/// As [`count`]; or the budget is exceeded by more than ten per cent.
#[expect(clippy::cast_precision_loss, reason = "figures for a reader")]
pub fn run(agent: &Path, conflicts: u32) -> Result<Vec<Figure>> {
    let mut counts = count(agent, conflicts)?;
    counts.sort_by_key(Executed::instructions);
    let (Some(least), Some(most)) = (counts.first(), counts.last()) else {
        bail!("no conflict was counted");
    };
    let note = format!(
        "median of {conflicts} conflicts of two pods, {} to {}",
        least.instructions(),
        most.instructions()
    );
    let median = &counts[counts.len() / 2];
    ensure!(
        median.instructions() <= BUDGET + BUDGET / 10,
        "{} instructions from the ring buffer to the event line, more than the budget of {BUDGET} and ten per cent",
        median.instructions()
    );
    Ok(vec![
        Figure::new(
            GROUP,
            "instructions from the ring buffer to the event line",
            median.instructions() as f64,
            "",
        )
        .goal(Goal::AtMost(30_000.0))
        .note(note),
        Figure::new(
            GROUP,
            "cache lines of these instructions",
            median.cache_lines() as f64,
            "",
        ),
    ])
}

/// Counts what the agent at this path executes for each of `conflicts` conflicts of two pods, one after the other.
///
/// # Errors
/// A namespace cannot be created, the thread cannot be traced, or the agent misses a conflict.
pub fn count(agent: &Path, conflicts: u32) -> Result<Vec<Executed>> {
    let node = Node::new("steps")?;
    let pairs = PodPairs::new(&node, conflicts, [10, 98, 0, 0].into(), |pod| pod)?;
    let mut agent = Agent::start_ready(&node, &AgentCommand::run(agent))?;
    let thread = thread_of(agent.pid())?;
    let mut counts = Vec::new();
    for number in 0..conflicts {
        let stepper = Cell::new(None);
        let before = agent.event_count();
        let (.., executed) = pairs.cause(
            number,
            Duration::from_millis(50),
            || stepper.set(Some(Stepper::attach(thread))),
            |subject| {
                let mut stepper = stepper.take().context("nothing is traced")??;
                let executed = stepper.run_to_line()?;
                drop(stepper);
                agent.wait_event_after(before, DEADLINE, |event| event.raises(subject))?;
                Ok(executed)
            },
        )?;
        counts.push(executed);
    }
    agent.terminate(DEADLINE)?;
    Ok(counts)
}

/// The event loop's thread of this process.
fn thread_of(pid: u32) -> Result<Pid> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        if fs::read_to_string(task.path().join("comm"))?.trim_end() == THREAD {
            let id = task.file_name().to_string_lossy().parse()?;
            return Ok(Pid::from_raw(id));
        }
    }
    bail!("process {pid} has no thread {THREAD}")
}

/// A thread that is stopped just before it waits for the kernel.
struct Stepper {
    thread: Pid,
    /// Whether there is a system call at this address.
    is_call: HashMap<u64, bool>,
}

/// A system call that is about to be made.
struct Call {
    number: i64,
    length: u64,
}

impl Stepper {
    fn attach(thread: Pid) -> Result<Self> {
        ptrace::seize(thread, Options::empty()).context("could not trace the thread")?;
        ptrace::interrupt(thread)?;
        let mut stepper = Self {
            thread,
            is_call: HashMap::new(),
        };
        stepper.wait()?;
        loop {
            let (_, call) = stepper.next()?;
            if call.is_some_and(|call| is_wait(&call)) {
                return Ok(stepper);
            }
            stepper.step()?;
        }
    }

    /// What it executes from the return of its last wait to the line.
    fn run_to_line(&mut self) -> Result<Executed> {
        let mut executed = Executed::default();
        let mut last = 0;
        loop {
            let (at, call) = self.next()?;
            match call {
                Some(call) if is_wait(&call) => executed = Executed::default(),
                Some(call) if is_line(&call) => return Ok(executed),
                // Each turn of a repeated instruction stops as well, and counts with its first one.
                _ if at != last => executed.addresses.push(at),
                _ => {}
            }
            last = at;
            self.step()?;
        }
    }

    /// The address of the next instruction, and the system call that it is.
    fn next(&mut self) -> Result<(u64, Option<Call>)> {
        let registers = ptrace::getregs(self.thread)?;
        let at = registers.rip;
        let is_call = match self.is_call.get(&at) {
            Some(is_call) => *is_call,
            None => {
                let word = ptrace::read(self.thread, at as ptrace::AddressType)?;
                // `syscall`
                let is_call = word.to_le_bytes().starts_with(&[0x0f, 0x05]);
                self.is_call.insert(at, is_call);
                is_call
            }
        };
        let call = is_call.then_some(Call {
            number: registers.rax.cast_signed(),
            length: registers.rdx,
        });
        Ok((at, call))
    }

    /// Executes one instruction.
    fn step(&self) -> Result<()> {
        ptrace::step(self.thread, None::<Signal>)?;
        self.wait()
    }

    fn wait(&self) -> Result<()> {
        let status = waitpid(self.thread, Some(WaitPidFlag::__WALL))?;
        let is_stopped = matches!(
            status,
            WaitStatus::Stopped(_, Signal::SIGTRAP) | WaitStatus::PtraceEvent(..)
        );
        ensure!(is_stopped, "the thread is not stopped, but {status:?}");
        Ok(())
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        // Fails if the thread has ended, which is noticed elsewhere.
        let _ = ptrace::detach(self.thread, None::<Signal>);
    }
}

fn is_wait(call: &Call) -> bool {
    [libc::SYS_epoll_wait, libc::SYS_epoll_pwait].contains(&call.number)
}

fn is_line(call: &Call) -> bool {
    call.number == libc::SYS_write && call.length > SHORTER_THAN_A_LINE
}
