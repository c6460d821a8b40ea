//! A disk in memory that loses power, or fills up, at any operation.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard},
};

use redb::{Database, DatabaseError, StorageBackend};

use crate::persist::store;

/// Bytes that a disk writes at once or not at all.
const SECTOR: usize = 512;

/// What can be undone of an operation that was not synced.
#[derive(Debug)]
enum Pending {
    Write {
        offset: usize,
        old: Vec<u8>,
        new: Vec<u8>,
    },
    Length {
        old: usize,
        new: usize,
        cut: Vec<u8>,
    },
}

#[derive(Debug, Default)]
struct DiskState {
    bytes: Vec<u8>,
    pending: Vec<Pending>,
    /// Operations that change something, so far.
    operations: usize,
    /// At this one the power goes.
    crash_at: Option<usize>,
    off: bool,
    full: bool,
}

/// The disk. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk(Arc<Mutex<DiskState>>);

impl Disk {
    fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap()
    }

    /// Opens the database on it.
    pub(super) fn open(&self) -> Result<Database, DatabaseError> {
        let open = || store::builder().create_with_backend(self.clone());
        match open() {
            // As the store does with a file: a crash while it was made.
            Err(why) if store::is_damaged(&why) => {
                self.lock().bytes.clear();
                self.lock().pending.clear();
                open()
            }
            opened => opened,
        }
    }

    pub(super) fn operations(&self) -> usize {
        self.lock().operations
    }

    pub(super) fn crash_at(&self, operation: usize) {
        self.lock().crash_at = Some(operation);
    }

    pub(super) fn is_off(&self) -> bool {
        self.lock().off
    }

    /// The failure passes, and everything written so far is there.
    pub(super) fn come_back(&self) {
        let mut state = self.lock();
        state.off = false;
        state.crash_at = None;
    }

    /// No write succeeds while it is full.
    pub(super) fn set_full(&self, full: bool) {
        self.lock().full = full;
    }

    /// The power is back: of what was not synced some is there, some is not, some is torn.
    pub(super) fn power_on(&self, random: &mut fastrand::Rng) {
        let mut state = self.lock();
        let pending = std::mem::take(&mut state.pending);
        for operation in pending.iter().rev() {
            match operation {
                Pending::Write { offset, old, .. } => {
                    state.bytes[*offset..*offset + old.len()].copy_from_slice(old);
                }
                Pending::Length { old, cut, .. } => {
                    state.bytes.resize(*old, 0);
                    let at = old - cut.len();
                    state.bytes[at..].copy_from_slice(cut);
                }
            }
        }
        for operation in pending {
            if random.bool() {
                continue;
            }
            match operation {
                Pending::Write { offset, new, .. } => {
                    for (n, sector) in new.chunks(SECTOR).enumerate() {
                        let at = offset + n * SECTOR;
                        // A sector past an end that was not moved is nowhere.
                        if random.u8(..8) > 0 && at + sector.len() <= state.bytes.len() {
                            state.bytes[at..at + sector.len()].copy_from_slice(sector);
                        }
                    }
                }
                Pending::Length { new, .. } => state.bytes.resize(new, 0),
            }
        }
        state.off = false;
        state.crash_at = None;
    }

    fn change(&self) -> io::Result<MutexGuard<'_, DiskState>> {
        let mut state = self.lock();
        if state.crash_at == Some(state.operations) {
            state.off = true;
        }
        state.operations += 1;
        if state.off {
            return Err(io::Error::other("the power is off"));
        }
        if state.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(state)
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        let state = self.lock();
        if state.off {
            return Err(io::Error::other("the power is off"));
        }
        Ok(state.bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.lock();
        if state.off {
            return Err(io::Error::other("the power is off"));
        }
        let at = usize::try_from(offset).unwrap();
        let found = state.bytes.get(at..at + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.change()?;
        let (old, new) = (state.bytes.len(), usize::try_from(len).unwrap());
        let cut = state.bytes.get(new..).unwrap_or_default().to_vec();
        state.bytes.resize(new, 0);
        state.pending.push(Pending::Length { old, new, cut });
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.change()?.pending.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.change()?;
        let at = usize::try_from(offset).unwrap();
        let place = at..at + data.len();
        let old = state.bytes[place.clone()].to_vec();
        state.bytes[place].copy_from_slice(data);
        state.pending.push(Pending::Write {
            offset: at,
            old,
            new: data.to_vec(),
        });
        Ok(())
    }
}
