//! Loading the programs into the kernel.
//!
//! One file: a third of it is the words for what may go wrong, which stand beside the step that they tell of.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io,
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfError, EbpfLoader, Endianness,
    maps::{
        HashMap, MapError, PerCpuArray, RingBuf,
        lpm_trie::{Key, LpmTrie},
    },
    programs::{BtfTracePoint, ProgramError, SchedClassifier},
};
use detector_common::{Budget, SHARED_KIND_BITS, SharedAddress, TAG_ARP, TAG_NDP, shared_address};
use ipnet::IpNet;
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};

use super::{
    CounterReader, EbpfOptions, RingReader, SHARED_NETWORKS,
    attach::Devices,
    btf::{Btf, BtfError},
    capability,
    leftovers::PROGRAM,
    offsets,
    tc::TcError,
};

/// The programs as `cargo xtask build` left them; empty without a BPF toolchain.
pub(super) const OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/detector-ebpf.o"));

const DEFAULT_BTF: &str = "/sys/kernel/btf/vmlinux";

/// The programs that watch the kernel's neighbour tables, with the tracepoint of each.
const NEIGHBOUR_PROGRAMS: [(&str, &str); 3] = [
    ("ipconflict_neigh_update", "neigh_update_done"),
    ("ipconflict_neigh_timer", "neigh_timer_handler"),
    ("ipconflict_neigh_cleanup", "neigh_cleanup_and_release"),
];

/// Why the programs could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The agent was built without them.
    #[error(
        "this agent was built without its kernel programs: build it with `cargo xtask build`, or run it with --no-ebpf"
    )]
    Stub,
    /// A capability is missing.
    #[error("loading the kernel programs needs {0}: run as root, or grant it to the agent")]
    MissingCapability(&'static str),
    /// The kernel's type information is missing or unusable.
    #[error("the kernel's type information at {path} cannot be used: {problem}")]
    Btf {
        /// Where it was looked for.
        path: PathBuf,
        /// What is wrong with it.
        problem: BtfProblem,
    },
    /// The kernel refused although the capabilities are there.
    #[error(
        "the kernel does not let this process load programs ({0}): it runs in a user namespace or a locked-down kernel; run it in the host's own, or with --no-ebpf"
    )]
    NotPermitted(io::Error),
    /// The verifier refused a program.
    #[error(
        "the kernel's verifier refused the program {program}: {source}; its reasons are in the log at level debug"
    )]
    Verifier {
        /// The program.
        program: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel lacks something else.
    #[error("the kernel programs could not be loaded: {0}; --no-ebpf runs without them")]
    Kernel(String),
    /// Netlink could not be opened.
    #[error("the kernel's traffic control (tc) cannot be asked: {0}")]
    Tc(#[from] TcError),
}

/// What is wrong with the kernel's type information.
#[derive(Debug, thiserror::Error)]
pub enum BtfProblem {
    /// The file is not there or not readable.
    #[error("{0}; the kernel must be built with CONFIG_DEBUG_INFO_BTF")]
    Unreadable(io::Error),
    /// The file is empty.
    #[error("it is empty; the kernel must be built with CONFIG_DEBUG_INFO_BTF")]
    Empty,
    /// It is no BTF, or lacks something.
    #[error("{0}")]
    Unusable(String),
}

impl From<BtfError> for BtfProblem {
    fn from(error: BtfError) -> Self {
        Self::Unusable(error.to_string())
    }
}

/// The loaded programs and what they are attached to. Dropping it detaches all.
#[derive(Debug)]
pub struct Programs {
    pub(super) ebpf: Ebpf,
    pub(super) devices: Devices,
    counters: CounterReader,
    neighbour_problem: Option<String>,
}

impl Programs {
    /// Loads the programs and starts to watch the neighbour tables of this thread's network namespace. To see devices,
    /// attach to them.
    ///
    /// # Errors
    /// One of [`LoadError`]; nothing stays loaded then. That the neighbour tables cannot be watched is no error, see
    /// [`Self::neighbour_events`].
    pub fn load(options: &EbpfOptions) -> Result<(Self, RingReader), LoadError> {
        Self::load_object(OBJECT, options)
    }

    fn load_object(object: &[u8], options: &EbpfOptions) -> Result<(Self, RingReader), LoadError> {
        if object.is_empty() {
            return Err(LoadError::Stub);
        }
        if let Some(name) = capability::missing() {
            return Err(LoadError::MissingCapability(name));
        }
        raise_memory_lock_limit();
        let path = options.btf.as_deref().unwrap_or(Path::new(DEFAULT_BTF));
        let unusable = |problem| LoadError::Btf {
            path: path.to_owned(),
            problem,
        };
        let bytes = fs::read(path).map_err(|error| unusable(BtfProblem::Unreadable(error)))?;
        if bytes.is_empty() {
            return Err(unusable(BtfProblem::Empty));
        }
        let types = Btf::parse(&bytes).map_err(|error| unusable(error.into()))?;
        let offsets = offsets::find(&types).map_err(|error| unusable(error.into()))?;
        let kernel = aya::Btf::parse(&bytes, Endianness::default())
            .map_err(|error| unusable(BtfProblem::Unusable(error.to_string())))?;

        let mut ebpf = create(object, options, &kernel, &offsets)?;
        let ring =
            RingBuf::try_from(take(&mut ebpf, "EVENTS")?).map_err(|error| map_error(&error))?;
        let counts =
            PerCpuArray::try_from(take(&mut ebpf, "COUNTS")?).map_err(|error| map_error(&error))?;
        let budgets =
            HashMap::try_from(take(&mut ebpf, "BUDGETS")?).map_err(|error| map_error(&error))?;
        let counters = CounterReader::new(counts, budgets);
        tell_shared(&mut ebpf, options)?;
        load_classifier(&mut ebpf)?;
        let neighbour_problem = watch_neighbours(&mut ebpf, &types, &kernel).err();
        let devices = Devices::open(options.attach)?;
        Ok((
            Self {
                ebpf,
                devices,
                counters,
                neighbour_problem,
            },
            RingReader::new(ring),
        ))
    }

    /// Whether neighbour entries are reported by the ring buffer. Where not, netlink has to.
    #[must_use]
    pub fn neighbour_events(&self) -> bool {
        self.neighbour_problem.is_none()
    }

    /// Why neighbour entries are not reported, in one sentence.
    #[must_use]
    pub fn neighbour_problem(&self) -> Option<&str> {
        self.neighbour_problem.as_deref()
    }

    /// Reads what the programs count.
    #[must_use]
    pub fn counters(&self) -> CounterReader {
        self.counters.clone()
    }

    /// The program for pod devices.
    pub(super) fn classifier(&mut self) -> Option<(&mut SchedClassifier, &mut Devices)> {
        let program = self.ebpf.program_mut(PROGRAM)?.try_into().ok()?;
        Some((program, &mut self.devices))
    }
}

fn create(
    object: &[u8],
    options: &EbpfOptions,
    kernel: &aya::Btf,
    offsets: &[(&'static str, u32)],
) -> Result<Ebpf, LoadError> {
    let budget = Budget::new(options.budget_burst, options.budget_per_second);
    let republish = u64::try_from(options.republish_after.as_nanos()).unwrap_or(u64::MAX);
    let netns = own_netns_inode()?;
    // The standard library's hash maps are seeded from the kernel's random numbers, each anew.
    let seed = RandomState::new().hash_one(netns);
    let shared = shared_networks(options);
    let shared_addresses = u32::from(!shared.is_empty());
    // A map has at least one entry.
    let shared = u32::try_from(shared.len().max(1)).unwrap_or(u32::MAX);
    let mut loader = EbpfLoader::new();
    loader
        .btf(Some(kernel))
        .map_max_entries("EVENTS", ring_size(options.ring_bytes))
        .map_max_entries("SHARED", shared)
        .override_global("SHARED_ADDRESSES", &shared_addresses, true)
        .override_global("REPUBLISH_AFTER_NS", &republish, true)
        .override_global("BUDGET_INTERVAL_NS", &budget.interval_ns, true)
        .override_global("BUDGET_WINDOW_NS", &budget.window_ns, true)
        .override_global("NETNS_INODE", &netns, true)
        .override_global("HASH_SEED", &seed, true);
    for (global, offset) in offsets {
        loader.override_global(global, offset, true);
    }
    loader.load(object).map_err(|error| match error {
        EbpfError::MapError(error) => map_error(&error),
        error => LoadError::Kernel(chain(&error)),
    })
}

fn shared_networks(options: &EbpfOptions) -> &[IpNet] {
    let heeded = options.shared.len().min(SHARED_NETWORKS);
    options.shared.get(..heeded).unwrap_or_default()
}

/// Tells the classifier which addresses may move.
fn tell_shared(ebpf: &mut Ebpf, options: &EbpfOptions) -> Result<(), LoadError> {
    // Borrowed: a map that is taken is gone before the program that uses it is loaded.
    let map = ebpf.map_mut("SHARED").ok_or_else(|| no_map("SHARED"))?;
    let mut trie: LpmTrie<_, SharedAddress, u32> =
        LpmTrie::try_from(map).map_err(|error| map_error(&error))?;
    for network in shared_networks(options) {
        let address = match network.network() {
            IpAddr::V4(v4) => {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&v4.octets());
                shared_address(TAG_ARP, bytes)
            }
            IpAddr::V6(v6) => shared_address(TAG_NDP, v6.octets()),
        };
        let bits = SHARED_KIND_BITS + u32::from(network.prefix_len());
        trie.insert(&Key::new(bits, address), 1, 0)
            .map_err(|error| map_error(&error))?;
    }
    Ok(())
}

fn load_classifier(ebpf: &mut Ebpf) -> Result<(), LoadError> {
    let program = ebpf
        .program_mut(PROGRAM)
        .ok_or_else(|| LoadError::Kernel(format!("{PROGRAM} is missing")))?;
    let program: &mut SchedClassifier = program
        .try_into()
        .map_err(|error| program_error(PROGRAM, error))?;
    program
        .load()
        .map_err(|error| program_error(PROGRAM, error))
}

/// Loads and attaches the neighbour programs: all of them or none, since a half-told story misleads.
fn watch_neighbours(ebpf: &mut Ebpf, types: &Btf<'_>, kernel: &aya::Btf) -> Result<(), String> {
    for (name, tracepoint) in NEIGHBOUR_PROGRAMS {
        if !types.has_tracepoint(tracepoint) {
            return Err(format!("the kernel has no tracepoint {tracepoint}"));
        }
        let result =
            tracing_program(ebpf, name).and_then(|program| program.load(tracepoint, kernel));
        result.map_err(|error| program_error(name, error).to_string())?;
    }
    for (name, _) in NEIGHBOUR_PROGRAMS {
        let attached = tracing_program(ebpf, name).and_then(BtfTracePoint::attach);
        if let Err(error) = attached {
            for (name, _) in NEIGHBOUR_PROGRAMS {
                // What was attached already is taken back; a program that was not has nothing to unload from.
                let _ = tracing_program(ebpf, name).and_then(BtfTracePoint::unload);
            }
            return Err(program_error(name, error).to_string());
        }
    }
    Ok(())
}

fn tracing_program<'a>(
    ebpf: &'a mut Ebpf,
    name: &str,
) -> Result<&'a mut BtfTracePoint, ProgramError> {
    ebpf.program_mut(name)
        .ok_or(ProgramError::NotLoaded)?
        .try_into()
}

fn take(ebpf: &mut Ebpf, name: &str) -> Result<aya::maps::Map, LoadError> {
    ebpf.take_map(name).ok_or_else(|| no_map(name))
}

fn no_map(name: &str) -> LoadError {
    LoadError::Kernel(format!("the object has no map {name}"))
}

fn map_error(error: &MapError) -> LoadError {
    match error {
        MapError::CreateError { io_error, .. }
            if io_error.kind() == io::ErrorKind::PermissionDenied =>
        {
            LoadError::NotPermitted(
                io_error
                    .raw_os_error()
                    .map_or_else(|| io_error.kind().into(), io::Error::from_raw_os_error),
            )
        }
        error => LoadError::Kernel(chain(error)),
    }
}

fn program_error(program: &'static str, error: ProgramError) -> LoadError {
    match error {
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => {
            if io_error.kind() == io::ErrorKind::PermissionDenied
                && verifier_log.to_string().is_empty()
            {
                return LoadError::NotPermitted(io_error);
            }
            tracing::debug!(program, log = %tail(&verifier_log.to_string()), "the verifier's last words");
            LoadError::Verifier {
                program,
                source: io_error,
            }
        }
        error => LoadError::Kernel(format!("{program}: {}", chain(&error))),
    }
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// The end of a verifier log, where the reason stands.
fn tail(log: &str) -> String {
    const LINES: usize = 40;
    let lines: Vec<&str> = log.lines().collect();
    lines
        .get(lines.len().saturating_sub(LINES)..)
        .unwrap_or_default()
        .join("\n")
}

/// The next size a ring buffer can have: a power of two, at least a page.
fn ring_size(bytes: u32) -> u32 {
    const LARGEST: u32 = 1 << 30;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|size| u32::try_from(size).ok())
        .unwrap_or(4096);
    bytes.clamp(page, LARGEST).next_power_of_two()
}

/// The inode by which the kernel knows this thread's network namespace.
fn own_netns_inode() -> Result<u32, LoadError> {
    let path = "/proc/thread-self/ns/net";
    let metadata =
        fs::metadata(path).map_err(|error| LoadError::Kernel(format!("{path}: {error}")))?;
    u32::try_from(metadata.ino())
        .map_err(|_| LoadError::Kernel(format!("{path}: its inode is no namespace's")))
}

/// Kernels before 5.11 charge maps to this limit. Where it cannot be raised, creating the maps will say so.
fn raise_memory_lock_limit() {
    if let Err(errno) = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY) {
        tracing::debug!(%errno, "the limit for locked memory stays as it is");
    }
}

#[expect(
    dead_code,
    reason = "proves at compile time that the programs may move to a thread of their own"
)]
fn is_send(programs: Programs, reader: RingReader, counters: CounterReader) -> impl Send {
    (programs, reader, counters)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `cargo build` leaves it on a machine without a BPF toolchain. Whoever runs it, root or not, is told that first.
    #[test]
    fn an_agent_built_without_kernel_programs_refuses_to_run_and_says_what_helps() {
        let refused = Programs::load_object(&[], &EbpfOptions::default());
        let error = refused.map(drop).map_err(|error| error.to_string());
        let said = "this agent was built without its kernel programs: build it with `cargo xtask build`, or run it with --no-ebpf";
        assert_eq!(error, Err(said.to_owned()));
    }
}
