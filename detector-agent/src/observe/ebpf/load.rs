//! Loads the programs into the kernel.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::Path,
};

use aya::{
    Ebpf, EbpfError, EbpfLoader, Endianness,
    maps::{
        Array, HashMap, PerCpuArray, RingBuf,
        lpm_trie::{Key, LpmTrie},
    },
    programs::{BtfTracePoint, ProgramError, SchedClassifier},
};
use detector_common::{AddressKey, Budget, FAMILY_BITS, TAG_ARP, TAG_NDP, address_key};
use detector_event::error_chain::one_line;
use ipnet::IpNet;

use super::{
    CounterReader, EbpfOptions, KernelLog, KernelLogReader, RingReader, SHARED_NETWORKS,
    attach::AttachedDevices,
    btf::Btf,
    capability,
    claimed::ClaimedTable,
    leftovers::PROGRAM,
    load_error::{BtfProblem, LoadError, map_error, program_error},
    offsets,
};

/// The object built by `cargo xtask build`; empty if the agent was built without a BPF toolchain.
const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/detector-ebpf.o"));

const DEFAULT_BTF: &str = "/sys/kernel/btf/vmlinux";

/// The programs that follow the kernel's neighbour tables, and their tracepoints.
const NEIGHBOUR_PROGRAMS: [(&str, &str); 3] = [
    ("ipconflict_neigh_update", "neigh_update_done"),
    ("ipconflict_neigh_timer", "neigh_timer_handler"),
    ("ipconflict_neigh_cleanup", "neigh_cleanup_and_release"),
];

/// The loaded programs and the devices they are attached to. Detaches from all devices when dropped.
#[derive(Debug)]
pub struct Programs {
    pub(super) ebpf: Ebpf,
    pub(super) devices: AttachedDevices,
    pub(super) claimed: ClaimedTable,
    counters: CounterReader,
    neighbour_problem: Option<String>,
    kernel_log: Option<KernelLogReader>,
}

impl Programs {
    /// Loads the programs and follows the neighbour tables of this thread's network namespace. Attaches to no device yet.
    ///
    /// # Errors
    /// [`LoadError`]; nothing stays loaded then. Failure to follow the neighbour tables is not an error, see
    /// [`Self::has_neighbour_events`].
    pub fn load(options: &EbpfOptions) -> Result<(Self, RingReader), LoadError> {
        Self::load_object(OBJECT, options).map_err(|error| {
            let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
            error.on_kernel(release.trim_end())
        })
    }

    /// Checks that this thread may load and attach.
    ///
    /// # Errors
    /// [`LoadError::MissingCapability`].
    pub fn check_capabilities() -> Result<(), LoadError> {
        capability::missing().map_or(Ok(()), |name| Err(LoadError::MissingCapability(name)))
    }

    /// As [`Self::check_capabilities`], and that there is something to load.
    ///
    /// # Errors
    /// [`LoadError::Stub`], [`LoadError::MissingCapability`].
    pub fn check_loadable() -> Result<(), LoadError> {
        if OBJECT.is_empty() {
            return Err(LoadError::Stub);
        }
        Self::check_capabilities()
    }

    fn load_object(object: &[u8], options: &EbpfOptions) -> Result<(Self, RingReader), LoadError> {
        if object.is_empty() {
            return Err(LoadError::Stub);
        }
        Self::check_capabilities()?;
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

        // The standard library seeds each `RandomState` from the kernel's random numbers.
        let seed = RandomState::new().hash_one(());
        let mut ebpf = create(object, options, &offsets, seed)?;
        let ring =
            RingBuf::try_from(take(&mut ebpf, "EVENTS")?).map_err(|error| map_error(&error))?;
        let counts =
            PerCpuArray::try_from(take(&mut ebpf, "COUNTS")?).map_err(|error| map_error(&error))?;
        let budgets =
            HashMap::try_from(take(&mut ebpf, "BUDGETS")?).map_err(|error| map_error(&error))?;
        let counters = CounterReader::new(counts, budgets);
        let claimed =
            HashMap::try_from(take(&mut ebpf, "CLAIMED")?).map_err(|error| map_error(&error))?;
        let recent =
            Array::try_from(take(&mut ebpf, "CLAIMS")?).map_err(|error| map_error(&error))?;
        let claimed = ClaimedTable::new(claimed, recent, seed);
        insert_shared_networks(&mut ebpf, options)?;
        let kernel_log = (options.kernel_log != KernelLog::Off)
            .then(|| KernelLogReader::new(&mut ebpf, counters.clone()))
            .transpose()
            .map_err(|error| LoadError::Kernel(one_line(&error)))?;
        load_classifier(&mut ebpf)?;
        let neighbour_problem = follow_neighbours(&mut ebpf, &types).err();
        let devices = AttachedDevices::open(options.attach)?;
        Ok((
            Self {
                ebpf,
                devices,
                claimed,
                counters,
                neighbour_problem,
                kernel_log,
            },
            RingReader::new(ring),
        ))
    }

    /// Whether neighbour updates come by the ring buffer. If not, they have to be observed by netlink.
    #[must_use]
    pub fn has_neighbour_events(&self) -> bool {
        self.neighbour_problem.is_none()
    }

    /// Why neighbour updates do not come by the ring buffer, in one sentence.
    #[must_use]
    pub fn neighbour_problem(&self) -> Option<&str> {
        self.neighbour_problem.as_deref()
    }

    /// A reader of the programs' counters.
    #[must_use]
    pub fn counters(&self) -> CounterReader {
        self.counters.clone()
    }

    /// The reader of the kernel log, once; `None` while it is off.
    pub fn take_kernel_log(&mut self) -> Option<KernelLogReader> {
        self.kernel_log.take()
    }

    /// The program for pod devices.
    pub(super) fn classifier(&mut self) -> Option<(&mut SchedClassifier, &mut AttachedDevices)> {
        let program = self.ebpf.program_mut(PROGRAM)?.try_into().ok()?;
        Some((program, &mut self.devices))
    }
}

fn create(
    object: &[u8],
    options: &EbpfOptions,
    offsets: &[(&'static str, u32)],
    seed: u64,
) -> Result<Ebpf, LoadError> {
    let budget = Budget::new(options.budget_burst, options.budget_per_second);
    let republish = u64::try_from(options.republish_after.as_nanos()).unwrap_or(u64::MAX);
    let netns = own_netns_inode()?;
    let shared = shared_networks(options);
    let shared_addresses = u32::from(!shared.is_empty());
    // A map has at least one entry.
    let shared = u32::try_from(shared.len().max(1)).unwrap_or(u32::MAX);
    let kernel_log = match options.kernel_log {
        KernelLog::Off => 0_u32,
        KernelLog::Losses => 1,
        KernelLog::All => 2,
    };
    let mut loader = EbpfLoader::new();
    loader
        // The object has no relocations for it.
        .btf(None)
        .map_max_entries("EVENTS", ring_size(options.ring_bytes))
        .map_max_entries("SHARED", shared)
        .override_global("KERNEL_LOG", &kernel_log, true)
        .override_global("SHARED_ADDRESSES", &shared_addresses, true)
        .override_global("REPUBLISH_AFTER_NS", &republish, true)
        .override_global("BUDGET_INTERVAL_NS", &budget.interval_ns, true)
        .override_global("BUDGET_WINDOW_NS", &budget.window_ns, true)
        .override_global("NETNS_INODE", &netns, true)
        .override_global("HASH_SEED", &seed, true);
    if kernel_log == 0 {
        // Nothing writes to them.
        loader
            .map_max_entries("AYA_LOGS", ring_size(0))
            .map_max_entries("LOG_BUDGETS", 1);
    }
    for (global, offset) in offsets {
        loader.override_global(global, offset, true);
    }
    loader.load(object).map_err(|error| match error {
        EbpfError::MapError(error) => map_error(&error),
        error => LoadError::Kernel(one_line(&error)),
    })
}

fn shared_networks(options: &EbpfOptions) -> &[IpNet] {
    let count = options.shared.len().min(SHARED_NETWORKS);
    options.shared.get(..count).unwrap_or_default()
}

/// Fills the table of shared addresses.
fn insert_shared_networks(ebpf: &mut Ebpf, options: &EbpfOptions) -> Result<(), LoadError> {
    // Borrowed, not taken: the programs that use it are not loaded yet.
    let map = ebpf.map_mut("SHARED").ok_or_else(|| no_map("SHARED"))?;
    let mut trie: LpmTrie<_, AddressKey, u32> =
        LpmTrie::try_from(map).map_err(|error| map_error(&error))?;
    for network in shared_networks(options) {
        let address = match network.network() {
            IpAddr::V4(v4) => {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&v4.octets());
                address_key(TAG_ARP, bytes)
            }
            IpAddr::V6(v6) => address_key(TAG_NDP, v6.octets()),
        };
        let bits = FAMILY_BITS + u32::from(network.prefix_len());
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

/// Loads and attaches the neighbour programs: all or none, because incomplete updates would be misleading.
fn follow_neighbours(ebpf: &mut Ebpf, types: &Btf<'_>) -> Result<(), String> {
    let tracepoints = NEIGHBOUR_PROGRAMS.map(|(_, tracepoint)| tracepoint);
    let types = types.only_tracepoints(&tracepoints);
    let types = types.map_err(|error| error.to_string())?;
    let types =
        aya::Btf::parse(&types, Endianness::default()).map_err(|error| error.to_string())?;
    for (name, tracepoint) in NEIGHBOUR_PROGRAMS {
        let result =
            tracing_program(ebpf, name).and_then(|program| program.load(tracepoint, &types));
        result.map_err(|error| program_error(name, error).to_string())?;
    }
    for (name, _) in NEIGHBOUR_PROGRAMS {
        let attached = tracing_program(ebpf, name).and_then(BtfTracePoint::attach);
        if let Err(error) = attached {
            for (name, _) in NEIGHBOUR_PROGRAMS {
                // An error means that this program was not attached yet.
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

/// The smallest valid size of a ring buffer of at least `bytes`: a power of two, at least a page.
fn ring_size(bytes: u32) -> u32 {
    const LARGEST: u32 = 1 << 30;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|size| u32::try_from(size).ok())
        .unwrap_or(4096);
    bytes.clamp(page, LARGEST).next_power_of_two()
}

/// The inode of this thread's network namespace.
fn own_netns_inode() -> Result<u32, LoadError> {
    let path = "/proc/thread-self/ns/net";
    let metadata =
        fs::metadata(path).map_err(|error| LoadError::Kernel(format!("{path}: {error}")))?;
    u32::try_from(metadata.ino())
        .map_err(|_| LoadError::Kernel(format!("{path}: the inode exceeds 32 bits")))
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

    /// As built on a machine without a BPF toolchain. Reported before a missing capability.
    #[test]
    fn loading_without_an_object_names_the_remedy() {
        let result = Programs::load_object(&[], &EbpfOptions::default());
        let error = result.map(drop).map_err(|error| error.to_string());
        let expected = "this agent was built without its kernel programs; build it with `cargo xtask build`, or run it with --no-ebpf";
        assert_eq!(error, Err(expected.to_owned()));
    }
}
