//! A machine with persistent memory, emulated by QEMU, with a Debian kernel in it.
//!
//! # Place
//!
//! The machine is for tests that user-mode Linux cannot run: dm-writecache's persistent-memory
//! mode, and files that are mapped with `MAP_SYNC`. The memory of the machine is a file of the
//! host. So its content survives a kill of the machine, and can be read from outside.
//!
//! # Invariants
//!
//! - **G1** Like every guest, the machine has ended before [`Machine::run`] returns.
//!
//! # Failure
//!
//! The content of the processor's caches is not lost when QEMU is killed. So these tests cannot
//! find a wrong order of stores, or a missing write-back of a line. Crash enumeration finds such
//! faults (crates/cache/tests/it/crash.rs).

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use buttress_interop::linux::has_program;
use buttress_interop::scratch::Scratch;

use crate::guest::{Said, listen, make_initramfs, make_job};

/// The variable with the folder of an unpacked kernel package.
pub const KERNEL: &str = "BUTTRESS_PMEM_KERNEL";

/// The offset of `/dev/pmem0` in the file of the memory. Before this offset, the kernel keeps its
/// data about a namespace with DAX.
pub const PMEM_START: u64 = 2 << 20;

/// The modules, in the order of their dependencies. A missing module is built in, or the test
/// reports it.
const MODULES: [&str; 7] =
    ["dm-mod", "dm-bufio", "dm-writecache", "libnvdimm", "nd_btt", "nfit", "nd_pmem"];

/// `echo` ends the line that the firmware left open on the console. The first kernel sets the mode
/// of the namespace (fsdax), as `ndctl create-namespace` does. Later kernels find the namespace in
/// this mode.
const INIT: &str = "\
#!/bin/busybox sh
/bin/busybox --install -s /bin
echo
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in dm-mod dm-bufio dm-writecache libnvdimm nd_btt nfit nd_pmem; do
    insmod /mod/$module.ko 2>/dev/null
done
nd=/sys/bus/nd
if [ \"$(cat /sys/block/pmem0/queue/dax)\" = 0 ]; then
    echo namespace0.0 > $nd/drivers/nd_pmem/unbind
    echo 2097152 > $nd/devices/pfn0.0/align
    echo 0b077e55-0000-4000-8000-000000000001 > $nd/devices/pfn0.0/uuid
    echo ram > $nd/devices/pfn0.0/mode
    echo namespace0.0 > $nd/devices/pfn0.0/namespace
    echo pfn0.0 > $nd/drivers/nd_pmem/bind
fi
tr -d '\\000' < /dev/nvme0n1 > /job
sh /job 2>&1
echo rig-end
poweroff -f
";

/// A kernel, and the paths of its modules.
fn kernel() -> Option<(PathBuf, Vec<PathBuf>)> {
    let root = std::env::var_os(KERNEL).map_or_else(|| PathBuf::from("/"), PathBuf::from);
    let entries = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
    let modules = |folder: &Path| -> Option<Vec<PathBuf>> {
        let drivers = folder.join("kernel/drivers");
        let find = |name: &str| {
            let file = format!("{name}.ko");
            let places = ["md", "nvdimm", "acpi/nfit"].map(|place| drivers.join(place).join(&file));
            places.into_iter().find(|path| path.exists())
        };
        MODULES.iter().map(|name| find(name)).collect()
    };
    entries(root.join("lib/modules")).find_map(|folder| {
        let image = format!("vmlinuz-{}", folder.file_name().to_string_lossy());
        let image = root.join("boot").join(image);
        Some((image.exists().then_some(image)?, modules(&folder.path())?))
    })
}

/// Whether a machine can be started. Prints what is missing, once.
///
/// # Panics
///
/// If a kernel was named and something is missing.
#[must_use]
pub fn has_machine() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let programs =
            ["qemu-system-x86_64", "busybox", "dmsetup", "cpio", "mke2fs", "e2fsck", "debugfs"];
        let mut lacking: Vec<_> =
            programs.into_iter().filter(|program| !has_program(program)).collect();
        if kernel().is_none() {
            lacking.push("a kernel with nfit, nd_pmem and dm-writecache as modules");
        }
        if lacking.is_empty() {
            return true;
        }
        let text = format!(
            "\n==== SKIPPED: tests on persistent memory: need apt-get install qemu-system-x86 \
             busybox-static dmsetup cpio e2fsprogs, and a kernel (apt-get download \
             linux-image-*-cloud-amd64; dpkg-deb -x it into a folder; {KERNEL}=FOLDER); lacking \
             here: {} ====\n",
            lacking.join(", ")
        );
        assert!(std::env::var_os(KERNEL).is_none(), "{KERNEL} is set.{text}");
        // This write bypasses the test harness, which hides the output of a passing test.
        let _ = std::io::stderr().write_all(text.as_bytes());
        false
    })
}

/// The files of a machine.
#[derive(Debug)]
pub struct Machine {
    scratch: Scratch,
    kernel: PathBuf,
    memory_len: u64,
}

impl Machine {
    /// Prepares a machine with `memory_len` bytes of persistent memory, a multiple of 2 MiB. `work`
    /// is the program `rig-work`.
    ///
    /// # Panics
    ///
    /// If anything is missing. Call [`has_machine`] first.
    #[must_use]
    pub fn new(work: &Path, memory_len: u64) -> Self {
        let scratch = Scratch::new();
        let (kernel, modules) = kernel().expect("it was found before");
        make_initramfs(&scratch, INIT, &modules, work);
        let memory = File::create(scratch.join("memory")).expect("a file");
        memory.set_len(memory_len).expect("there is room");
        Self { scratch, kernel, memory_len }
    }

    /// A path for a file.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// The file of the persistent memory; see [`PMEM_START`].
    #[must_use]
    pub fn memory(&self) -> PathBuf {
        self.scratch.join("memory")
    }

    /// Runs a shell script in the machine. `/dev/pmem0` is the memory, and `/dev/nvme1n1` the
    /// origin. Kills the machine when a line of its output is `kill_at`.
    ///
    /// # Panics
    ///
    /// If the script does not come to its end, or QEMU cannot be started.
    #[track_caller]
    pub fn run(&self, script: &str, origin: &Path, kill_at: Option<&str>) -> Said {
        let job = self.scratch.join("job");
        make_job(&job, script);
        // Only the machine is killed, and not the host, so flushes need to reach only the host's
        // memory.
        let drive = |name: &str, path: &Path| {
            format!("id={name},file={},format=raw,if=none,cache=unsafe", path.display())
        };
        let memory = format!(
            "memory-backend-file,id=memory,share=on,mem-path={},size={}",
            self.memory().display(),
            self.memory_len
        );
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-machine", "pc,nvdimm=on,accel=tcg", "-cpu", "max", "-smp", "1"])
            .args(["-m", "256M,slots=2,maxmem=1G", "-nodefaults", "-nographic", "-no-reboot"])
            .args(["-serial", "stdio"])
            .args(["-object", &memory, "-device", "nvdimm,id=nvdimm,memdev=memory"])
            .args(["-drive", &drive("job", &job), "-device", "nvme,drive=job,serial=job"])
            .args(["-drive", &drive("origin", origin)])
            .args(["-device", "nvme,drive=origin,serial=origin"])
            .args(["-append", "console=ttyS0 quiet loglevel=1 panic=-1"])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(self.scratch.join("initramfs"));
        listen(command, kill_at)
    }
}
