//! Replacements of devices that a crash cut off: those of Linux end here, and ours in Linux.
//!
//! The volumes have two devices. Linux 6.18 registers no device of a volume of one device. So after
//! a crash it does not find the new device, whether Linux or we began the replacement.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_format::DeviceId;
use buttress_fs::{Filesystem, ReplaceState};
use buttress_interop::linux::{
    Images, check_all, has_linux_btrfs, has_program, run, sparse_copy, sparse_file,
};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::sample::{Folder, Library, Scale, change, fill};
use buttress_interop::scratch::Scratch;

use crate::open::{close, manifest, open};

const LEN: u64 = 1 << 30;

/// Linux replaces a device. In the middle, the file system below both devices is frozen, and the
/// devices are copied: that is what a power cut leaves. Prints how far Linux had come.
const CUT: &str = r#"
set -eu
cd "$1"
mkdir -p host mnt
truncate -s 3G host.img
mkfs.ext4 -q -F host.img
mount -o loop host.img host
cp --sparse=always source host/source
cp --sparse=always other host/other
truncate -s $(( $(stat -c %s source) + 4194304 )) host/target
source=$(losetup --find --show host/source)
other=$(losetup --find --show host/other)
target=$(losetup --find --show host/target)
end() {
    fsfreeze -u host 2>/dev/null || true
    btrfs replace cancel mnt 2>/dev/null || true
    umount mnt || { sleep 1; umount mnt; } || true
    losetup -d "$source" "$other" "$target" || true
    umount host || true
}
trap end EXIT
mount -t btrfs -o "device=$other" "$source" mnt
btrfs replace start -f 1 "$target" mnt
tries=0
while [ $tries -lt 5000 ]; do
    tries=$((tries + 1))
    status=$(btrfs replace status -1 mnt)
    case "$status" in
        0.*done*) ;;
        *) break ;;
    esac
done
fsfreeze -f host
cp --sparse=always host/source cut-source
cp --sparse=always host/other cut-other
cp --sparse=always host/target cut-target
fsfreeze -u host
echo "$status"
"#;

/// A source, another device and a target as Linux left them in the middle of a replacement, and
/// what the volume holds. `None` if Linux was too fast.
fn cut_off(scratch: &Scratch) -> Option<(Vec<PathBuf>, Manifest)> {
    let images = Images::new(2, LEN);
    images.mkfs(&["-m", "raid1", "-d", "single"]);
    let mount = images.mount("");
    fill(&Folder::new(mount.path()), &Scale::default());
    mount.shell("for i in 1 2 3 4 5; do head -c 60000000 /dev/urandom > large-$i; done; sync");
    mount.shell("touch plain; chattr +C plain; head -c 3000000 large-1 > plain; sync");
    mount.unmount();
    sparse_copy(&images.paths()[0], &scratch.path().join("source"));
    sparse_copy(&images.paths()[1], &scratch.path().join("other"));
    let folder = scratch.path().as_os_str();
    let text = run("bash", ["-c".as_ref(), CUT.as_ref(), "cut".as_ref(), folder]);
    if !text.contains("done") {
        eprintln!("SKIPPED: Linux was too fast: {text}");
        return None;
    }
    let paths = ["cut-source", "cut-other", "cut-target"].map(|name| scratch.path().join(name));
    Some((paths.to_vec(), manifest(images.paths())))
}

fn state(fs: &Filesystem) -> Option<ReplaceState> {
    fs.replace_status().expect("the record").map(|status| status.state)
}

fn writable(path: &Path) -> Arc<dyn Device> {
    Arc::new(FileDevice::open(path, OpenOptions::WRITE).expect("a device"))
}

/// What Linux says of the last replacement of a volume, while it ends one that was cut off.
fn ended_by_linux(images: &Images) -> String {
    let mount = images.mount("");
    let mut said = String::new();
    for _ in 0..600 {
        said = mount.btrfs("replace status -1");
        if said.contains("finished") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    mount.unmount();
    said
}

/// A replacement of Linux that was cut off ends here, also after a mount without the new device has
/// written. It can be cancelled, too. A mount without the new device moves the cursor back to the
/// beginning before it writes. So Linux then copies the whole old device when it ends the
/// replacement.
#[test]
pub(crate) fn linux_began_to_replace_a_device() {
    if !has_linux_btrfs() || !has_program("fsfreeze") || !has_program("mkfs.ext4") {
        return;
    }
    let scratch = Scratch::new();
    let Some((cut, known)) = cut_off(&scratch) else { return };
    for how in ["ended", "ended later", "cancelled", "ended by Linux"] {
        let paths = ["source", "other", "target"];
        let paths =
            paths.map(|name| scratch.path().join(format!("{}-{name}", how.replace(' ', "-"))));
        cut.iter().zip(&paths).for_each(|(from, to)| sparse_copy(from, to));
        let mut known = known.clone();
        if matches!(how, "ended later" | "ended by Linux") {
            let fs = open(&paths[..2], true);
            assert_eq!((fs.read_only_reason(), state(&fs)), (None, Some(ReplaceState::Suspended)));
            change(&Library::new(&fs), &Scale::default(), 1);
            fs.sync().expect("a sync");
            known = Manifest::of_library(&fs);
            close(fs);
        }
        let left = match how {
            "ended by Linux" => {
                let said = ended_by_linux(&Images::over(paths.to_vec()));
                assert!(said.contains("finished"), "{said}");
                &paths[1..]
            }
            _ => {
                let fs = open(&paths, true);
                assert_eq!(
                    (fs.read_only_reason(), state(&fs)),
                    (None, Some(ReplaceState::Suspended))
                );
                let left = if how == "cancelled" {
                    assert!(fs.cancel_replace().expect("a cancellation"));
                    &paths[..2]
                } else {
                    let found = fs.resume_replace(&mut |_| true).expect("the rest").expect("one");
                    assert_eq!(found.uncorrectable_errors, 0, "{how}: {found:?}");
                    &paths[1..]
                };
                close(fs);
                left
            }
        };
        check_all(left);
        known.assert_same("known", &manifest(left), how, Depth::Volume);
        let mount = Images::over(left.to_vec()).mount("");
        let said = mount.btrfs("replace status -1");
        let word = if how == "cancelled" { "canceled" } else { "finished" };
        assert!(said.contains(word), "{how}: {said}");
        mount.unmount();
    }
}

/// A replacement that was begun here and cut off ends in Linux.
#[test]
pub(crate) fn linux_ends_a_replacement_begun_here() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(2, 600 << 20);
    images.mkfs(&["-m", "raid1", "-d", "raid1"]);
    let mount = images.mount("");
    fill(&Folder::new(mount.path()), &Scale::default());
    mount.unmount();
    let new = images.scratch().join("new");
    sparse_file(&new, 604 << 20);
    let paths = ["cut-source", "cut-other", "cut-target"].map(|name| images.scratch().join(name));
    let fs = open(images.paths(), true);
    let mut pieces = 0;
    let stopped = fs.replace_device(DeviceId(1), writable(&new), &mut |_| {
        pieces += 1;
        if pieces == 30 {
            // The process ends here: the files are what it leaves.
            let from = images.paths().iter().chain([&new]);
            from.zip(&paths).for_each(|(from, to)| sparse_copy(from, to));
        }
        pieces < 30
    });
    assert!(stopped.is_err() && pieces == 30, "{pieces} pieces");
    let known = Manifest::of_library(&fs);
    close(fs);
    let said = ended_by_linux(&Images::over(paths.to_vec()));
    assert!(said.contains("finished"), "{said}");
    check_all(&paths[1..]);
    known.assert_same("known", &manifest(&paths[1..]), "ended by Linux", Depth::Volume);
}
