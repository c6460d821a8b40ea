//! One guest: a server for the shared file system, the emulator, and a deadline for both.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use super::{image, kernel::Kernel, plan::Plan, verdict::Verdict};
use crate::{process::shown, workspace::Workspace};

/// Serves a folder to a guest; it comes with Debian's emulator.
pub(crate) const FILE_SERVER: &str = "/usr/lib/qemu/virtiofsd";
/// The emulator. Acceleration is not used: it is not there, or does not work, where virtual machines run in others.
pub(crate) const EMULATOR: &str = "qemu-system-x86_64";
const MEMORY: &str = "4G";

/// A process that ends with its owner.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots `kernel`, runs the plan in it, and says how that ended.
///
/// # Errors
/// The guest could not be started at all.
pub(super) fn run(
    workspace: &Workspace,
    kernel: &Kernel,
    plan: &Plan,
    deadline: Duration,
) -> Result<Verdict> {
    let unpacked = kernel.fetch(workspace)?;
    let folder = workspace.target().join("vm").join(kernel.series);
    fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
    let initramfs = image::write(&folder, &unpacked)?;
    let plan_file = folder.join("plan");
    fs::write(&plan_file, plan.text(*kernel)?).context("could not write the plan")?;
    let suite = folder.join("suite.sh");
    fs::write(&suite, include_str!("suite.sh")).context("could not write the suite's script")?;

    let socket = folder.join("files.sock");
    let _server = serve(&socket, &folder)?;
    let arguments = format!(
        "console=ttyS0 quiet panic=-1 vm.modules={} vm.plan={} vm.suite={}",
        unpacked.modules().display(),
        plan_file.display(),
        suite.display(),
    );
    let mut emulator = Command::new(EMULATOR);
    emulator
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"])
        .args(["-m", MEMORY, "-nodefaults", "-nographic", "-no-reboot"])
        .args(["-serial", "stdio"])
        .arg("-object")
        .arg(format!(
            "memory-backend-memfd,id=memory,size={MEMORY},share=on"
        ))
        .args(["-numa", "node,memdev=memory"])
        .arg("-chardev")
        .arg(format!("socket,id=files,path={}", socket.display()))
        .args(["-device", "vhost-user-fs-pci,chardev=files,tag=host"])
        .arg("-kernel")
        .arg(unpacked.image())
        .arg("-initrd")
        .arg(&initramfs)
        .args(["-append", &arguments])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut guest = Owned(
        emulator
            .spawn()
            .with_context(|| format!("could not start `{EMULATOR}`"))?,
    );
    let console = guest.0.stdout.take().context("the guest has no console")?;
    let mut verdict = Verdict::new(kernel.series, plan.left_out(*kernel), &plan.binaries);
    let mut log = fs::File::create(folder.join("console.log")).context("could not keep a log")?;
    let (lines, read) = mpsc::channel();
    thread::spawn(move || {
        // The thread ends with the console, which ends with the guest.
        for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    let until = Instant::now() + deadline;
    loop {
        match read.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => verdict.hear(&line, &mut log)?,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                verdict.hung(deadline);
                return Ok(verdict);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                verdict.ended();
                return Ok(verdict);
            }
        }
    }
}

/// Serves this machine's file system at `socket`; the guest mounts it read-only.
fn serve(socket: &Path, folder: &Path) -> Result<Owned> {
    // Left by a run that was ended.
    let _ = fs::remove_file(socket);
    let log = fs::File::create(folder.join("files.log")).context("could not keep a log")?;
    let errors = log.try_clone().context("could not keep a log")?;
    let mut command = Command::new(FILE_SERVER);
    command
        .arg(format!("--socket-path={}", socket.display()))
        .args(["-o", "source=/,cache=always,sandbox=chroot"])
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors);
    let mut server = Owned(
        command
            .spawn()
            .with_context(|| format!("could not start `{FILE_SERVER}`"))?,
    );
    let until = Instant::now() + Duration::from_secs(10);
    while !socket.exists() {
        if let Some(status) = server.0.try_wait().context("could not wait")? {
            bail!("`{}` ended at once ({status})", shown(&command));
        }
        if Instant::now() > until {
            bail!("`{}` did not open its socket", shown(&command));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(server)
}
