//! Image files, and the loop devices through which Linux sees them.

use std::fs::File;
use std::path::{Path, PathBuf};

use buttress_block::{Device, FileDevice};
use buttress_test_program::mounts::in_own_namespace;

use super::command::{run, try_run};
use super::loop_device::Loop;
use super::mount::Mount;
use crate::scratch::Scratch;

/// Copies an image without its holes, which make up most of the image. Replaces the file at `to`.
///
/// # Panics
///
/// If the image cannot be copied.
pub fn sparse_copy(from: &Path, to: &Path) {
    run("cp", ["--sparse=always".as_ref(), from.as_os_str(), to.as_os_str()]);
}

/// Writes the content of a device into a new image, without the zeroes.
///
/// # Panics
///
/// If the device or the image fails.
pub fn save(device: &dyn Device, path: &Path) {
    drop(std::fs::remove_file(path));
    let file = FileDevice::create(path, device.len()).expect("an image");
    let zeroes = vec![0; 64 << 10];
    let mut block = zeroes.clone();
    for at in (0..device.len()).step_by(zeroes.len()) {
        let len = zeroes.len().min((device.len() - at) as usize);
        device.read_at(at, &mut block[..len]).expect("a device of a test");
        if block[..len] != zeroes[..len] {
            file.write_at(at, &block[..len]).expect("an image");
        }
    }
}

/// Makes a file of `len` bytes that takes no space.
///
/// # Panics
///
/// If the file cannot be made.
pub fn sparse_file(path: &Path, len: u64) {
    File::create(path)
        .and_then(|file| file.set_len(len))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Runs `btrfs check` on an unmounted volume, including data checksums.
///
/// # Panics
///
/// If `btrfs check` finds anything, with its report.
#[track_caller]
pub fn check(image: &Path) {
    let arguments = ["check".as_ref(), "--check-data-csum".as_ref(), image.as_os_str()];
    demand_clean(try_run("btrfs", arguments));
}

#[track_caller]
fn demand_clean(said: Result<String, String>) {
    match said {
        // Some versions print leaks of space and stale caches, but do not count them as errors.
        Ok(text) if !text.contains("ERROR") => {}
        Ok(text) | Err(text) => panic!("btrfs check: {text}"),
    }
}

/// Runs `btrfs check` as [`check`] does, for a volume on several files.
///
/// # Panics
///
/// When `btrfs check` finds something.
#[track_caller]
pub fn check_all(images: &[PathBuf]) {
    if let [only] = images {
        return check(only);
    }
    let loops: Vec<Loop> = images.iter().map(|path| Loop::attach(path)).collect();
    let names = loops.iter().map(|device| device.device.as_str());
    demand_clean(try_run(
        "sh",
        in_own_namespace(None, CHECK_ALONE, ["sh"].into_iter().chain(names)),
    ));
}

/// Runs `btrfs check` on one volume. The arguments are its devices.
///
/// The tool scans all of `/dev`. Here it sees no device of a test that runs at the same time. Such
/// a device may go between the scan and the check, and the scan would keep it from being detached.
const CHECK_ALONE: &str = r#"
set -e
seen=$(stat --format="%n %t %T" "$@")
mount -t tmpfs none /dev
mkdir -p /run/blkid
mount -t tmpfs none /run/blkid
mknod /dev/null c 1 3
echo "$seen" | while read -r name major minor; do
    mknod "$name" b "0x$major" "0x$minor"
done
exec btrfs check --check-data-csum "$1"
"#;

/// The image files of one volume.
#[derive(Debug)]
pub struct Images {
    scratch: Scratch,
    paths: Vec<PathBuf>,
}

impl Images {
    /// Makes `count` sparse files of `len` bytes.
    #[must_use]
    pub fn new(count: usize, len: u64) -> Self {
        let scratch = Scratch::new();
        let paths: Vec<PathBuf> =
            (1..=count).map(|number| scratch.join(&format!("device-{number}.img"))).collect();
        for path in &paths {
            sparse_file(path, len);
        }
        Self { scratch, paths }
    }

    /// A volume on existing files of other volumes. The files stay when this value is dropped. The
    /// first file is the one that is mounted.
    #[must_use]
    pub fn over(paths: Vec<PathBuf>) -> Self {
        Self { scratch: Scratch::new(), paths }
    }

    /// The paths of the files, in the order of their devices.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The first, or only, file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.paths[0]
    }

    /// The folder of the files.
    #[must_use]
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Makes a volume on the files with Linux's tool.
    ///
    /// # Panics
    ///
    /// If the tool refuses.
    #[track_caller]
    pub fn mkfs(&self, arguments: &[&str]) {
        let paths = self.paths.iter().map(|path| path.as_os_str());
        run("mkfs.btrfs", ["-q", "-f"].iter().chain(arguments).map(AsRef::as_ref).chain(paths));
    }

    /// Shows the volume through Linux until the guard drops.
    ///
    /// # Panics
    ///
    /// If Linux refuses.
    #[track_caller]
    #[must_use]
    pub fn mount(&self, options: &str) -> Mount {
        self.mount_some(&self.paths, options)
    }

    /// Shows the volume as [`Images::mount`] does, without one of the devices, and read-only.
    ///
    /// # Panics
    ///
    /// If Linux refuses.
    #[track_caller]
    #[must_use]
    pub fn mount_without(&self, lost: usize) -> Mount {
        let mut left = self.paths.clone();
        left.remove(lost);
        self.mount_some(&left, "ro,degraded")
    }

    #[track_caller]
    fn mount_some(&self, paths: &[PathBuf], options: &str) -> Mount {
        let loops: Vec<Loop> = paths.iter().map(|path| Loop::attach(path)).collect();
        // Linux drops subvolumes once in a commit interval, so the interval is short here.
        let mut list = format!("noatime,commit=1,{options}");
        for device in &loops {
            if loops.len() > 1 {
                list.push_str(&format!(",device={}", device.device));
            }
        }
        Mount::new(&self.scratch, loops, list.trim_matches(','))
    }

    /// Runs our own checker on the volume, including its data.
    ///
    /// # Panics
    ///
    /// If the checker finds anything, with its report.
    #[track_caller]
    pub fn check_volume(&self) {
        let report =
            buttress_check::check_images(&self.paths, &buttress_check::Options::thorough())
                .unwrap_or_else(|error| panic!("buttress check: {error}"));
        assert!(report.is_clean(), "buttress check:\n{}", report.to_text());
    }

    /// Runs `btrfs check` and our own checker on the volume.
    ///
    /// # Panics
    ///
    /// When `btrfs check` or our own checker finds something.
    #[track_caller]
    pub fn check(&self) {
        self.check_volume();
        check_all(&self.paths);
    }
}
