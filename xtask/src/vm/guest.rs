//! One guest: a server for the shared file system and the emulator, with a time limit.

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

use super::{
    image,
    kernel::{GuestKernel, UnpackedKernel},
    plan::TestPlan,
    report::KernelReport,
};
use crate::{
    files,
    process::{command_line, spawn},
    workspace::Workspace,
};

/// Serves a directory to a guest; part of Debian's QEMU package.
const FILE_SERVER: &str = "/usr/lib/qemu/virtiofsd";
/// The emulator. KVM is not used: it is often unavailable or broken inside virtual machines.
const EMULATOR: &str = "qemu-system-x86_64";
/// Memory of a guest; the host provides what the guest has touched.
pub(super) const MEMORY_MIB: u64 = 4096;
/// One thread for all processors of the guest. With a thread for each, QEMU 7.2 may execute an instruction that another processor has
/// just replaced: the kernel flips a static key, for example on the first filter of a device, by writing a breakpoint over live code,
/// and a breakpoint that is hit after it was removed is fatal ("Oops: int3").
const ACCELERATION: &str = "tcg,thread=single";
/// The emulated clocks stand still while the host runs something else, which must not count as broken hardware.
const CLOCKS: &str = "tsc=reliable no_timer_check";

/// A process that is killed on drop.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots `kernel`, runs the plan in it and reports the results.
///
/// # Errors
/// The guest could not be started, or its console could not be logged.
pub(super) fn run(
    workspace: &Workspace,
    kernel: GuestKernel,
    unpacked: &UnpackedKernel,
    plan: &TestPlan,
    limit: Duration,
) -> Result<KernelReport> {
    let dir = workspace.target().join("vm").join(kernel.series);
    files::create_dir(&dir)?;
    let initramfs = image::write(&dir, unpacked)?;
    let plan_file = dir.join("plan");
    files::write(&plan_file, plan.text(kernel)?)?;
    let suite = dir.join("suite.sh");
    files::write(&suite, include_str!("suite.sh"))?;

    let socket = dir.join("files.sock");
    let _server = start_file_server(&socket, &dir)?;
    let arguments = format!(
        "console=ttyS0 quiet panic=-1 {CLOCKS} vm.modules={} vm.plan={} vm.suite={}",
        unpacked.modules().display(),
        plan_file.display(),
        suite.display(),
    );
    let mut emulator = Command::new(EMULATOR);
    emulator
        .args(["-accel", ACCELERATION, "-cpu", "max", "-smp", "2"])
        .arg("-m")
        .arg(format!("{MEMORY_MIB}M"))
        .args(["-nodefaults", "-nographic", "-no-reboot"])
        .args(["-serial", "stdio"])
        .arg("-object")
        .arg(format!(
            "memory-backend-memfd,id=memory,size={MEMORY_MIB}M,share=on"
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
    let mut guest = KillOnDrop(spawn(&mut emulator)?);
    let console = guest.0.stdout.take().context("the guest has no console")?;
    let mut report = KernelReport::new(kernel.series, plan.exclusions(kernel), &plan.binaries);
    let mut log = files::create(&dir.join("console.log"))?;
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        // Ends when the guest closes its console, at the latest when it is killed.
        for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let deadline = Instant::now() + limit;
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => report.process_line(&line, &mut log)?,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                report.guest_timed_out(limit);
                return Ok(report);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                // It closes the console by exiting.
                let status = guest.0.wait().context("could not wait for the emulator")?;
                report.guest_exited(status);
                return Ok(report);
            }
        }
    }
}

/// Serves this machine's file system at `socket`, with a log in `dir`; the guest mounts it read-only.
fn start_file_server(socket: &Path, dir: &Path) -> Result<KillOnDrop> {
    // Left by an interrupted run.
    let _ = fs::remove_file(socket);
    let log = files::create(&dir.join("files.log"))?;
    let stderr = log
        .try_clone()
        .context("could not clone a file descriptor")?;
    let mut command = Command::new(FILE_SERVER);
    command
        .arg(format!("--socket-path={}", socket.display()))
        .args(["-o", "source=/,cache=always,sandbox=chroot"])
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(stderr);
    let mut server = KillOnDrop(spawn(&mut command)?);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !socket.exists() {
        if let Some(status) = server
            .0
            .try_wait()
            .context("could not wait for the file server")?
        {
            bail!("`{}` exited at once ({status})", command_line(&command));
        }
        if Instant::now() > deadline {
            bail!("`{}` did not open its socket", command_line(&command));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(server)
}
