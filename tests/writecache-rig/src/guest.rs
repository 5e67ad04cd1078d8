//! A Linux kernel as a process, with two files as its disks.
//!
//! # Invariants
//!
//! - **G1** A guest has ended before [`Guest::run`] returns, with all its processes, because they
//!   hold locks on its disks.
//!
//! # Failure
//!
//! A guest without output for five minutes is killed, and the test fails with its earlier output.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use buttress_interop::linux::{has_program, run};
use buttress_interop::scratch::Scratch;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const REQUIRE: &str = "BUTTRESS_REQUIRE_LINUX";
const TIMEOUT: Duration = Duration::from_secs(300);
const MODULES: &str = "/usr/lib/uml/modules";
/// Bytes of the disk that holds the script.
const JOB_LEN: usize = 8192;

const INIT: &str = "\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in dm-mod dm-bufio dm-writecache dm-log-writes; do insmod /mod/$module.ko 2>/dev/null; done
tr -d '\\000' < /dev/ubdc > /job
sh /job 2>&1
echo rig-end
poweroff -f
";

/// Whether a guest can be started. Prints what is missing, once. On some processors no guest runs:
/// see [`has_registers`]. A missing guest is then no failure, because no package would help.
///
/// # Panics
///
/// If something is missing and `BUTTRESS_REQUIRE_LINUX` is set.
#[must_use]
pub fn has_guest() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let mut lacking: Vec<_> = ["linux.uml", "busybox", "dmsetup", "cpio"]
            .into_iter()
            .filter(|program| !has_program(program))
            .collect();
        if module_folder().is_none() {
            lacking.push("dm-writecache.ko");
        }
        if lacking.is_empty() && has_registers() {
            return true;
        }
        if lacking.is_empty() {
            let text = "\n==== SKIPPED: tests against Linux's dm-writecache: this processor has the \
                        registers of AMX, and user-mode Linux before 6.13 cannot hold them ====\n";
            let _ = std::io::stderr().write_all(text.as_bytes());
            return false;
        }
        let text = format!(
            "\n==== SKIPPED: tests against Linux's dm-writecache: need apt-get install user-mode-linux \
             busybox-static dmsetup cpio; lacking here: {} ====\n",
            lacking.join(", ")
        );
        assert!(std::env::var_os(REQUIRE).is_none(), "{REQUIRE} is set.{text}");
        // This write bypasses the test harness, which hides the output of a passing test.
        let _ = std::io::stderr().write_all(text.as_bytes());
        false
    })
}

/// Whether a guest can hold all registers of its processes. User-mode Linux before 6.13 has a fixed
/// size for these registers. On a processor with AMX the state is larger: a guest of Linux 6.1
/// panics at its first process ("ptrace set fp regs failed").
fn has_registers() -> bool {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !processors.split_whitespace().any(|flag| flag == "amx_tile") {
        return true;
    }
    let version = run("linux.uml", ["--version"]);
    let mut numbers = version.trim().split('.').map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(13))
}

fn module_folder() -> Option<PathBuf> {
    let folders = std::fs::read_dir(MODULES).ok()?.filter_map(Result::ok);
    let mut folders = folders.map(|folder| folder.path().join("kernel/drivers/md"));
    folders.find(|folder| folder.join("dm-writecache.ko").exists())
}

/// The folder of the guest's files, and the programs for the guest.
#[derive(Debug)]
pub struct Guest {
    scratch: Scratch,
}

/// The output of a guest, and whether it was killed.
#[derive(Debug)]
pub struct Said {
    /// Its lines.
    pub lines: Vec<String>,
    /// Whether it was killed on demand.
    pub killed: bool,
}

impl Said {
    /// The N of the last `flushed N`.
    #[must_use]
    pub fn flushed(&self) -> usize {
        let mut counts = self.lines.iter().filter_map(|line| line.strip_prefix("flushed "));
        counts.next_back().map_or(0, |count| count.trim().parse().expect("a number"))
    }

    /// The line that begins with `word`, without that word.
    ///
    /// # Panics
    ///
    /// If there is no such line.
    #[must_use]
    pub fn line(&self, word: &str) -> &str {
        let found = self.lines.iter().find_map(|line| line.strip_prefix(word));
        found.unwrap_or_else(|| panic!("no line {word:?} in {:#?}", self.lines)).trim()
    }
}

impl Guest {
    /// Builds the initramfs; `work` is the program `rig-work`.
    ///
    /// # Panics
    ///
    /// If anything is missing. Call [`has_guest`] first.
    #[must_use]
    pub fn new(work: &Path) -> Self {
        let scratch = Scratch::new();
        let folder = module_folder().expect("it was found before");
        let modules = ["dm-mod.ko", "dm-bufio.ko", "dm-writecache.ko", "dm-log-writes.ko"];
        let modules: Vec<_> = modules.iter().map(|module| folder.join(module)).collect();
        make_initramfs(&scratch, INIT, &modules, work);
        Self { scratch }
    }

    /// A path for an image.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Runs a shell script in the guest. `/dev/ubda` is the origin, and `/dev/ubdb` the cache.
    /// Kills the kernel when a line of its output is `kill_at`.
    ///
    /// # Panics
    ///
    /// If the script does not come to its end, or the kernel cannot be started.
    #[track_caller]
    pub fn run(&self, script: &str, origin: &Path, cache: &Path, kill_at: Option<&str>) -> Said {
        self.run_logged(script, origin, cache, None, kill_at)
    }

    /// Runs a shell script as [`Guest::run`] does, with a disk for a log, `/dev/ubdd`.
    ///
    /// # Panics
    ///
    /// If the script does not come to its end, or the kernel cannot be started.
    #[track_caller]
    pub fn run_logged(
        &self,
        script: &str,
        origin: &Path,
        cache: &Path,
        log: Option<&Path>,
        kill_at: Option<&str>,
    ) -> Said {
        let name = format!("job-{:?}", std::thread::current().id());
        let job = self.scratch.join(&name);
        make_job(&job, script);
        let disk = |name: &str, path: &Path| format!("{name}={}", path.display());
        let mut command = Command::new("linux.uml");
        command
            .args([
                "mem=256M",
                "root=/dev/ram0",
                "rdinit=/init",
                "con=null",
                "con0=null,fd:1",
                "quiet",
            ])
            .arg(format!("initrd={}", self.scratch.join("initramfs").display()))
            .arg(format!("uml_dir={}", self.scratch.path().display()))
            .args([disk("ubd0", origin), disk("ubd1", cache), disk("ubd2r", &job)])
            .args(log.map(|log| disk("ubd3", log)))
            .env("TMPDIR", self.scratch.path());
        listen(command, kill_at)
    }
}

/// Makes the file `initramfs` in a folder, with busybox, dmsetup, `rig-work` and modules. The guest
/// runs the script `init` as its first process.
pub(crate) fn make_initramfs(scratch: &Scratch, init: &str, modules: &[PathBuf], work: &Path) {
    let root = scratch.join("root");
    for folder in ["bin", "dev", "proc", "sys", "mod", "mnt"] {
        std::fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    for module in modules {
        let name = module.file_name().expect("a module has a name");
        std::fs::copy(module, root.join("mod").join(name)).expect("a module");
    }
    let which = |name: &str| {
        let found = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
            .iter()
            .map(|folder| Path::new(folder).join(name));
        found.into_iter().find(|path| path.exists()).expect("it was found before")
    };
    std::fs::copy(which("busybox"), root.join("bin/busybox")).expect("busybox");
    for program in [which("dmsetup"), work.to_owned()] {
        let name = program.file_name().expect("a program has a name");
        std::fs::copy(&program, root.join("bin").join(name)).expect("a program");
        let list = run("ldd", [&program]);
        for library in list.split_whitespace().filter(|word| word.starts_with('/')) {
            let target = root.join(&library[1..]);
            std::fs::create_dir_all(target.parent().expect("not the root")).expect("a folder");
            std::fs::copy(library, target).expect("a library");
        }
    }
    let place = root.join("init");
    std::fs::write(&place, init).expect("the init");
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755)).expect("ours");
    let script =
        format!("cd '{}' && find . | cpio --quiet -o -H newc > ../initramfs", root.display());
    run("sh", ["-c", &script]);
}

/// Writes a script to the file that is the guest's disk with the script.
pub(crate) fn make_job(path: &Path, script: &str) {
    let mut bytes = format!("set -e\n{script}\necho rig-done\n").into_bytes();
    assert!(bytes.len() <= JOB_LEN, "the script fits its disk");
    bytes.resize(JOB_LEN, 0);
    std::fs::write(path, bytes).expect("a file");
}

/// Starts a kernel and reads its output until it ends. Kills the kernel when it prints `kill_at`
/// (G1).
#[track_caller]
pub(crate) fn listen(mut command: Command, kill_at: Option<&str>) -> Said {
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut kernel = Kernel { child: command.spawn().expect("the kernel starts") };
    let out = kernel.child.stdout.take().expect("it is piped");
    let (send, receive) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    let mut said = Said { lines: Vec::new(), killed: false };
    loop {
        match receive.recv_timeout(TIMEOUT) {
            Ok(line) => {
                let line = line.trim_end().to_owned();
                said.killed = kill_at == Some(&line);
                said.lines.push(line);
                if said.killed {
                    break;
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                panic!("the guest hangs: {:#?}", said.lines);
            }
        }
    }
    drop(kernel);
    drop(receive);
    reader.join().expect("it does not panic");
    let is_done = said.lines.iter().any(|line| line == "rig-done");
    assert!(said.killed || is_done, "the script failed: {:#?}", said.lines);
    said
}

/// A running kernel and its helpers: one process group of our own (G1).
struct Kernel {
    child: Child,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // The kernel's helpers may have left the process group, and lose their parent with the
        // kernel, so they are listed first.
        let helpers = descendants(self.child.id());
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            // Processes that have ended already are no failure.
            let _ = kill_process_group(group, Signal::KILL);
        }
        for &helper in &helpers {
            if let Some(helper) = Pid::from_raw(helper.cast_signed()) {
                let _ = kill_process(helper, Signal::KILL);
            }
        }
        let _ = self.child.wait();
        // A killed process is not gone at once: freeing the memory of a kernel takes a while.
        for _ in 0..1000 {
            if !helpers.iter().any(|&helper| is_running(helper)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The state and the parent of a process.
fn state_of(process: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

fn is_running(process: u32) -> bool {
    state_of(process).is_some_and(|(state, _)| state != 'Z')
}

/// All descendants of a process.
fn descendants(process: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let all: Vec<(u32, u32)> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|process| Some((process, state_of(process)?.1)))
        .collect();
    let mut found = vec![process];
    let mut index = 0;
    while index < found.len() {
        let parent = found[index];
        found.extend(all.iter().filter(|(_, of)| *of == parent).map(|(process, _)| *process));
        index += 1;
    }
    found.split_off(1)
}
