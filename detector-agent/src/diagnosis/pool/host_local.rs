//! Pools of `host-local`: a directory with a file for each address in use.

use std::{collections::HashMap, fs, net::IpAddr, path::Path, sync::Arc};

use detector_engine::diagnosis::{Known, NetworkConfig, PoolState};

use super::record::{Allocations, FoundPool, Owner, OwnerIs, Scope};
use crate::{
    diagnosis::{
        PoolHistory,
        files::{file, filesystem, source},
    },
    ipam::read_file,
};

/// Most reservations of one network that are read: more than a /16 has.
const MAX_RESERVATIONS: usize = 70_000;
/// Bytes read of a reservation: a container's id and an interface's name are shorter.
const MAX_BYTES: u64 = 512;

/// The reservations in a directory.
///
/// # Errors
/// One sentence, if not all can be read.
pub(super) fn reservations(directory: &Path) -> Result<Arc<Allocations>, String> {
    let mut all = HashMap::new();
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Arc::new(all)),
        Err(error) => return Err(error.to_string()),
    };
    for entry in entries {
        let entry = entry.map_err(|error| error.to_string())?;
        let name = entry.file_name();
        let Ok(address) = name.to_string_lossy().parse::<IpAddr>() else {
            continue;
        };
        if all.len() >= MAX_RESERVATIONS {
            return Err(format!("it has more than {MAX_RESERVATIONS} reservations"));
        }
        // One that was released meanwhile is none.
        if let Ok(content) = read_file(&entry.path(), MAX_BYTES) {
            let content = String::from_utf8_lossy(&content);
            let id = content.lines().next().unwrap_or_default().trim();
            let owner = Owner {
                name: id.to_owned(),
                is: OwnerIs::Sandbox(id.to_owned()),
                at: None,
            };
            all.insert(address, vec![owner]);
        }
    }
    Ok(Arc::new(all))
}

/// The pool of `network`, whose reservations were read in `directory`.
pub(super) fn pool(
    network: &NetworkConfig,
    directory: &Path,
    reservations: Result<Arc<Allocations>, String>,
    address: IpAddr,
    history: &PoolHistory,
) -> FoundPool {
    let place = directory.display().to_string();
    FoundPool {
        network: network.clone(),
        source: source(directory),
        address_source: source(&directory.join(address.to_string())),
        allocations: reservations,
        scope: Scope::Ranges,
        releases: Known::Absent(source(directory)),
        state: PoolState::HostLocal {
            directory: file(directory),
            lock: file(&directory.join("lock")),
            filesystem: filesystem(directory),
            removals: history.at(&place),
        },
        place,
    }
}
