//! The end of a mount: the content of the image after an unmount, helpers of mount(8), and verbs
//! that run before the volume is closed.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use buttress_test_program::mounts::in_own_namespace;

use crate::checker::check;
use crate::live::{has, run};
use crate::{Bench, bench, text};

const FILES: usize = 300;

/// How often a volume is written, unmounted and copied, by each way of unmounting.
fn rounds() -> usize {
    std::env::var("BUTTRESS_UMOUNT_ROUNDS").map_or(7, |text| text.parse().expect("a number"))
}

pub(crate) fn can_mount() -> bool {
    has(&["umount", "btrfs", "unshare"], Some("/dev/fuse")) && crate::live::is_root()
}

/// Makes a link with the name of a helper to the program.
fn link(bench: &Bench, name: &str) -> PathBuf {
    let link = bench.path("sbin").join(name);
    if !link.exists() {
        fs::create_dir_all(bench.path("sbin")).expect("a folder");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_buttress"), &link).expect("a link");
    }
    link
}

pub(crate) fn helper(bench: &Bench, name: &str, args: &[&str]) -> Output {
    let mut command = Command::new(link(bench, name));
    command.args(args).current_dir(bench.folder());
    command.env("BUTTRESS_RUNTIME_DIR", bench.path("run")).output().expect("it starts")
}

/// Runs a script so that its mount(8) and umount(8) find the helpers, but no other program of the
/// machine does.
pub(crate) fn script(bench: &Bench, text: &str) -> Output {
    for kind in ["buttress", "fuse.buttress", "fuseblk.buttress"] {
        link(bench, &format!("mount.{kind}"));
        link(bench, &format!("umount.{kind}"));
    }
    let sbin = fs::canonicalize("/sbin").expect("it is there");
    let sbin = sbin.display();
    let whole = format!(
        "set -e
        mount -t overlay helpers -o lowerdir=\"$PWD/sbin\":{sbin} {sbin}\n{text}"
    );
    Command::new("sh")
        .args(in_own_namespace(None, &whole, []))
        .current_dir(bench.folder())
        .env("BUTTRESS_RUNTIME_DIR", bench.path("run"))
        .output()
        .expect("it starts")
}

#[track_caller]
pub(crate) fn succeeded(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}{complained}", output.status);
    said
}

/// A volume that is mounted in the background, with files.
fn written() -> Bench {
    let bench = bench();
    fs::create_dir(bench.path("mnt")).expect("a folder");
    bench.volume("image", "256M");
    bench.ok(&["mount", "image", "mnt"]);
    write(&bench);
    bench
}

fn write(bench: &Bench) {
    for number in 0..FILES {
        let name = bench.path(&format!("mnt/{number}"));
        fs::write(name, format!("{number} ").repeat(100)).expect("it is written");
    }
}

fn files_of(bench: &Bench, image: &str) -> usize {
    bench.ok(&["ls", &format!("{image}:/")]).lines().count()
}

/// Copies the image at once, and checks that the copy is a clean volume with all files.
#[track_caller]
fn everything_is_there(bench: &Bench) {
    fs::copy(bench.path("image"), bench.path("copy")).expect("a copy");
    assert_eq!(buttress_block::locked_by(&bench.path("image")), None);
    assert_eq!(files_of(bench, "copy"), FILES);
    check(&bench.path("copy"));
}

/// When `buttress umount` ends, the image is complete and not locked.
#[test]
fn unmounting_ends_when_everything_is_on_the_image() {
    if !can_mount() {
        return;
    }
    for _ in 0..rounds() {
        let bench = written();
        bench.ok(&["umount", "mnt"]);
        everything_is_there(&bench);
    }
}

/// When a helper of umount(8) ends, the image is complete and not locked.
#[test]
fn a_helper_ends_when_everything_is_on_the_image() {
    if !can_mount() {
        return;
    }
    for _ in 0..rounds() {
        for name in ["umount.fuse.buttress", "umount.buttress"] {
            let bench = written();
            succeeded(&helper(&bench, name, &["mnt", "-t", "fuse.buttress"]));
            everything_is_there(&bench);
        }
    }
}

/// The same for a block device that the kernel has mounted as such.
#[test]
fn the_helper_for_devices_ends_when_everything_is_on_the_image() {
    if !can_mount() {
        return;
    }
    for _ in 0..rounds() {
        let bench = bench();
        fs::create_dir(bench.path("mnt")).expect("a folder");
        bench.volume("image", "256M");
        let device = run("losetup", &["--find", "--show", text(&bench.path("image"))]);
        let device = device.trim();
        bench.ok(&["mount", device, text(&bench.path("mnt"))]);
        write(&bench);
        succeeded(&helper(&bench, "umount.fuseblk.buttress", &["mnt", "-t", "fuseblk.buttress"]));
        fs::copy(bench.path("image"), bench.path("copy")).expect("a copy");
        run("losetup", &["--detach", device]);
        assert_eq!(files_of(&bench, "copy"), FILES);
        check(&bench.path("copy"));
    }
}

/// When umount(8) ends, which runs the helper, the image is complete and not locked.
#[test]
fn umount_ends_when_everything_is_on_the_image() {
    if !can_mount() {
        return;
    }
    for _ in 0..rounds() {
        let bench = bench();
        bench.volume("image", "256M");
        succeeded(&script(
            &bench,
            "mkdir mnt; mount -t buttress image mnt
            for n in $(seq 0 299); do echo $n $n $n > mnt/$n; done
            umount mnt; cp image copy",
        ));
        assert_eq!(files_of(&bench, "copy"), FILES);
        check(&bench.path("copy"));
    }
}

/// mount(8) and umount(8) find the helpers by the type. A remount reaches the server and is refused
/// while files are written.
#[test]
fn mount_and_umount_run_the_helpers() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    bench.volume("image", "256M");
    let said = succeeded(&script(
        &bench,
        "mkdir -p mnt; echo \"$PWD/image $PWD/mnt buttress defaults,noatime 0 0\" > fstab
        mount -T fstab mnt
        for n in $(seq 0 299); do echo $n > mnt/$n; done
        umount mnt; cp image copy
        mount -t fuse.buttress image mnt
        exec 5>mnt/open; mount -o remount,ro mnt && echo wrong || echo refused $?; exec 5>&-; rm mnt/open
        echo late > mnt/late
        mount -o remount,ro mnt; cp image remounted
        touch mnt/no 2>/dev/null && echo wrong
        mount -o remount,rw mnt; rm mnt/late
        umount mnt; echo done",
    ));
    assert_eq!(said, "refused 32\ndone\n");
    for (image, files) in [("copy", FILES), ("remounted", FILES + 1), ("image", FILES)] {
        assert_eq!(files_of(&bench, image), files, "{image}");
        check(&bench.path(image));
    }
}

/// mount(8) passes the codes of a helper on: 1 for a wrong command line, 32 for a failed mount, 64
/// if some of several mounts failed.
#[test]
pub(crate) fn helpers_end_with_the_codes_of_mount() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    bench.volume("image", "256M");
    fs::create_dir(bench.path("mnt")).expect("a folder");
    let code = |name: &str, args: &[&str]| helper(&bench, name, args).status.code();
    let mount = |args: &[&str]| code("mount.fuse.buttress", args);
    let umount = |args: &[&str]| code("umount.buttress", args);
    assert_eq!(mount(&["image"]), Some(1));
    assert_eq!(mount(&["image", "mnt", "-x"]), Some(1));
    assert_eq!(mount(&["image", "mnt", "-o", "no_such_option"]), Some(1));
    assert_eq!(mount(&["missing", "mnt"]), Some(32));
    assert_eq!(mount(&["image", "missing"]), Some(32));
    assert_eq!(mount(&["image", "mnt", "-f"]), Some(0));
    assert_eq!(umount(&["mnt"]), Some(32));
    assert_eq!(mount(&["image", "mnt", "-n", "-o", "ro"]), Some(0));
    assert_eq!(mount(&["image", "mnt", "-o", "remount,rw"]), Some(0));
    assert_eq!(mount(&["image", "elsewhere", "-o", "remount,rw"]), Some(32));
    let open = fs::File::open(bench.path("mnt")).expect("it is open");
    assert_eq!(umount(&["mnt"]), Some(32));
    drop(open);
    assert_eq!(umount(&["missing", "mnt"]), Some(64));
    assert_eq!(mount(&["image", "mnt", "-s", "-o", "no_such_option"]), Some(0));
    assert_eq!(umount(&["mnt", "-v"]), Some(0));
    check(&bench.path("image"));
}

/// When systemd ends all processes, it spares processes of root with `@` as the first letter of the
/// name. A server has such a name only if the machine runs from its volume.
#[test]
fn a_server_of_the_machine_has_the_name_that_systemd_spares() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    bench.volume("image", "256M");
    fs::create_dir(bench.path("mnt")).expect("a folder");
    for (options, first) in [("noatime", b'b'), ("noatime,x-initrd.mount", b'@')] {
        let output = helper(&bench, "mount.buttress", &["image", "mnt", "-o", options]);
        succeeded(&output);
        let told: serde_json::Value =
            serde_json::from_str(&bench.ok(&["--json", "stats", "mnt"])).expect("JSON");
        let line = fs::read(format!("/proc/{}/cmdline", told["pid"])).expect("it runs");
        assert_eq!(line.first(), Some(&first), "{options}");
        bench.ok(&["umount", "mnt"]);
    }
}

/// umount(2) does not wait. The next verb waits, and finds everything.
#[test]
fn verbs_wait_for_a_server_that_is_closing() {
    if !can_mount() {
        return;
    }
    let away = |bench: &Bench| run("umount", &["-i", text(&bench.path("mnt"))]);
    let bench = written();
    away(&bench);
    assert_eq!(files_of(&bench, "image"), FILES);
    for args in [&["check", "image"][..], &["dump", "image", "--tree", "fs"], &["df", "image"]] {
        bench.ok(&["mount", "image", "mnt"]);
        fs::write(bench.path("mnt/more"), args.concat()).expect("it is written");
        away(&bench);
        bench.ok(args);
        let more = bench.ok(&["cat", "image:/more"]);
        assert_eq!(more, args.concat());
    }
    bench.ok(&["mount", "image", "mnt"]);
    fs::remove_file(bench.path("mnt/more")).expect("it is removed");
    away(&bench);
    bench.ok(&["mount", "image", "mnt"]);
    assert_eq!(fs::read_dir(bench.path("mnt")).expect("a folder").count(), FILES);
    bench.ok(&["umount", "image"]);
    check(&bench.path("image"));
}

/// Two dashes come before the names. The switches of the child must not come after the dashes: the
/// child would take them for names and start another child.
#[test]
fn names_behind_dashes_start_one_server() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    bench.volume("image", "256M");
    fs::create_dir(bench.path("mnt")).expect("a folder");
    bench.ok(&["mount", "--", "image", "mnt"]);
    bench.ok(&["umount", "--", "mnt"]);
    bench.fails(&["umount", "mnt"], 1, &["mnt", "is not mounted"]);
    bench.fails(&["umount", "/proc"], 1, &["/proc", "proc", "not ours"]);
}

/// A killed server may have lost the last commit. Its dead mount can still be unmounted.
#[test]
fn a_server_that_died_is_no_success() {
    if !can_mount() {
        return;
    }
    let bench = written();
    let pid = buttress_block::locked_by(&bench.path("image")).expect("it is locked");
    run("kill", &["-STOP", &pid.to_string()]);
    run("kill", &["-KILL", &pid.to_string()]);
    while buttress_block::locked_by(&bench.path("image")).is_some() {
        std::thread::yield_now();
    }
    bench.ok(&["umount", "mnt"]);
    check(&bench.path("image"));
}
