//! The owner of a path: a Buttress volume, a foreign mount inside of it, or a folder of the volume
//! that is bound elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::checker::check;
use crate::live::{Mounted, has, run};
use crate::{Bench, text};

/// Additional mounts. A drop unmounts them, the last one first.
struct Others(Vec<std::path::PathBuf>);

impl Others {
    fn tmpfs(&mut self, bench: &Bench, on: &str) {
        self.mount(bench, &["-t", "tmpfs", "none"], on);
    }

    fn bind(&mut self, bench: &Bench, what: &str, on: &str) {
        self.mount(bench, &["--bind", text(&bench.path(what))], on);
    }

    fn mount(&mut self, bench: &Bench, what: &[&str], on: &str) {
        let on = bench.path(on);
        std::fs::create_dir_all(&on).expect("a folder");
        run("mount", &[what, &[text(&on)]].concat());
        self.0.push(on);
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for on in self.0.drain(..).rev() {
            let _ = std::process::Command::new("umount").arg("-l").arg(on).status();
        }
    }
}

fn names(bench: &Bench, place: &str) -> Vec<String> {
    let list = bench.ok(&["subvolume", "list", place]);
    list.lines().filter_map(|line| line.rsplit(' ').next()).map(str::to_owned).collect()
}

/// A foreign mount inside of our mount has a name like a part of the volume. No verb mistakes this
/// mount for that part.
fn refuses_foreign(bench: &Bench, sub: &str, there: &str) {
    let x = &format!("{there}/x");
    std::fs::create_dir(bench.path(x)).expect("a folder");
    let verbs: [&[&str]; 18] = [
        &["subvolume", "create", &format!("{there}/new")],
        &["subvolume", "create", &format!("{x}/new")],
        &["subvolume", "snapshot", sub, there],
        &["subvolume", "snapshot", sub, &format!("{there}/snap")],
        &["subvolume", "snapshot", x, sub],
        &["subvolume", "delete", x],
        &["subvolume", "list", there],
        &["subvolume", "show", x],
        &["subvolume", "get-default", there],
        &["subvolume", "set-default", x],
        &["subvolume", "set-default", "5", there],
        &["property", "get", x],
        &["balance", "start", "--full-balance", there],
        &["balance", "status", there],
        &["scrub", "start", there],
        &["device", "stats", there],
        &["filesystem", "resize", "max", there],
        &["fstrim", there],
    ];
    for verb in verbs {
        bench.fails(verb, 1, &[there, "tmpfs", "not on the volume", "outside of that"]);
    }
    bench.fails(&["stats", there], 1, &["tmpfs"]);
}

#[test]
fn places_refuse_a_foreign_mount_within() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.volume("image", "300M");
    let mounted = Mounted::new(&bench, &[]);
    bench.ok(&["subvolume", "create", "mnt/sub"]);
    let mut others = Others(Vec::new());
    // Under the foreign mount, the volume has folders with the same names.
    for folder in ["mnt/there", "mnt/there/x", "mnt/sub/there"] {
        std::fs::create_dir(bench.path(folder)).expect("a folder");
    }
    others.tmpfs(&bench, "mnt/there");
    others.tmpfs(&bench, "mnt/sub/there");
    refuses_foreign(&bench, "mnt/sub", "mnt/there");
    refuses_foreign(&bench, "mnt/sub", "mnt/sub/there");
    assert_eq!(names(&bench, "mnt"), ["sub"]);
    drop(others);
    // Without the mount on top, the same place belongs to the volume.
    bench.ok(&["subvolume", "create", "mnt/there/new"]);
    assert_eq!(names(&bench, "mnt"), ["sub", "there/new"]);
    mounted.end();
    check(&bench.path("image"));
}

/// Subvolumes that are mounts of their own belong to the volume. Foreign mounts inside of such
/// subvolumes do not belong to the volume.
#[test]
fn submounts_are_ours_and_what_lies_in_them_is_not() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.volume("image", "300M");
    for place in ["image:/sub", "image:/sub/inner"] {
        bench.ok(&["subvolume", "create", place]);
    }
    let mounted = Mounted::new(&bench, &["-o", "submounts"]);
    let mut others = Others(Vec::new());
    std::fs::create_dir(bench.path("mnt/sub/inner/folder")).expect("a folder");
    others.tmpfs(&bench, "mnt/sub/inner/there");
    refuses_foreign(&bench, "mnt/sub/inner", "mnt/sub/inner/there");
    bench.ok(&["subvolume", "create", "mnt/sub/inner/folder/new"]);
    bench.ok(&["subvolume", "snapshot", "mnt/sub/inner", "mnt/sub/inner/folder/new"]);
    // A folder of such a subvolume is bound at another place.
    others.bind(&bench, "mnt/sub/inner/folder", "other");
    bench.ok(&["subvolume", "create", "other/bound"]);
    assert!(bench.path("other/bound").is_dir());
    let all = ["sub", "sub/inner", "sub/inner/folder/new", "sub/inner/folder/new/inner"];
    let all = [&all[..], &["sub/inner/folder/bound"]].concat();
    assert_eq!(names(&bench, "mnt/sub/inner"), all);
    assert!(bench.ok(&["device", "stats", "mnt/sub/inner"]).contains("write_io_errs"));
    drop(others);
    run("umount", &["-R", text(&bench.path("mnt"))]);
    mounted.ends();
    check(&bench.path("image"));
}

/// A folder that is bound elsewhere stands for itself, and not for the folder that it covers.
#[test]
fn bound_folders_show_their_own_content() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.volume("image", "300M");
    let mounted = Mounted::new(&bench, &[]);
    bench.ok(&["subvolume", "create", "mnt/sub"]);
    for folder in ["mnt/with space", "mnt/with space/more"] {
        std::fs::create_dir(bench.path(folder)).expect("a folder");
    }
    let mut others = Others(Vec::new());
    others.bind(&bench, "mnt/with space", "other");
    bench.ok(&["subvolume", "create", "other/more/new"]);
    assert!(bench.path("mnt/with space/more/new").is_dir());
    bench.ok(&["subvolume", "snapshot", "mnt/sub", "other"]);
    bench.ok(&["subvolume", "delete", "other/more/new"]);
    // The name of the image can be used while the user has it mounted.
    bench.ok(&["subvolume", "snapshot", "image:/sub", "mnt/with space/named"]);
    bench.ok(&["subvolume", "snapshot", "other/named", "./image:/sub/other"]);
    bench.ok(&["subvolume", "delete", "other/named", "mnt/sub/other"]);
    assert!(bench.ok(&["subvolume", "show", "other/sub"]).contains("with space/sub"));
    assert!(bench.ok(&["--json", "balance", "status", "other"]).contains('{'));
    bench.fails(&["subvolume", "delete", "other/more"], 1, &["other/more", "not a subvolume"]);

    // After the mount is unmounted, the bound folder still works as a mount.
    run("umount", &["-l", text(&bench.path("mnt"))]);
    bench.ok(&["subvolume", "create", "other/late"]);
    drop(others);
    mounted.ends();
    assert_eq!(bench.ok(&["subvolume", "list", "image"]).lines().count(), 3);
    check(&bench.path("image"));
}

/// A mount of ours inside of another belongs to its own volume. If no server answers for the inner
/// mount, as with another user's mount, the inner mount is still no place in the outer volume.
#[test]
fn a_mount_within_a_mount_is_its_own() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.volume("image", "200M");
    bench.volume("within", "200M");
    let mounted = Mounted::new(&bench, &[]);
    std::fs::create_dir(bench.path("mnt/there")).expect("a folder");
    for (runtime, is_known) in [("run", true), ("elsewhere", false)] {
        let mut command = bench.command(&["mount", "within", "mnt/there"]);
        command.env("BUTTRESS_RUNTIME_DIR", bench.path(runtime));
        assert!(command.status().expect("it starts").success());
        let other = Others(vec![bench.path("mnt/there")]);
        if is_known {
            bench.ok(&["subvolume", "create", "mnt/there/inner"]);
            assert_eq!(names(&bench, "mnt/there"), ["inner"]);
        } else {
            let words = ["mnt/there", "no mount of this user", "who mounted it"];
            bench.fails(&["subvolume", "create", "mnt/there/late"], 1, &words);
            bench.fails(&["subvolume", "list", "mnt/there"], 1, &words);
        }
        drop(other);
        assert!(names(&bench, "mnt").is_empty(), "nothing was made in the outer one");
    }
    mounted.end();
    check(&bench.path("image"));
    check(&bench.path("within"));
}

/// Verbs that read a volume by themselves take a path on its mount, and find what was written just
/// now. A mount of a subvolume shows its subvolume.
#[test]
fn reading_verbs_take_a_path_on_a_mount() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) {
        return;
    }
    for options in [&[][..], &["-o", "subvol=@"]] {
        let bench = crate::bench();
        bench.volume("image", "300M");
        bench.ok(&["subvolume", "create", "image:/@"]);
        let mounted = Mounted::new(&bench, options);
        std::fs::create_dir(bench.path("mnt/folder")).expect("a folder");
        std::fs::write(bench.path("mnt/folder/file"), "written just now").expect("a file");
        assert!(bench.ok(&["ls", "mnt"]).contains("folder"));
        assert_eq!(bench.ok(&["ls", "mnt/folder"]), "file\n");
        assert_eq!(bench.ok(&["cat", "mnt/folder/file"]), "written just now");
        assert!(bench.ok(&["stat", "mnt/folder/file"]).contains("Size: 16"));
        assert!(bench.ok(&["tree", "mnt"]).contains("file"));
        assert!(bench.ok(&["info", "mnt/folder"]).contains("generation"));
        assert!(bench.ok(&["dump", "mnt"]).contains("name: file"));
        assert!(bench.ok(&["restore", "--dry-run", "mnt"]).contains("whole"));
        bench.ok(&["undelete", "mnt"]);
        bench.fails(&["cat", "mnt/folder"], 1, &["no regular file"]);
        bench.fails(&["ls", "mnt/absent"], 1, &["absent"]);
        mounted.end();
        check(&bench.path("image"));
    }
}

/// Ends the writer of a test.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A verb that reads a mounted volume sees one commit, while programs write and commit.
#[test]
fn reading_verbs_see_one_commit() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.volume("image", "300M");
    let mounted = Mounted::new(&bench, &[]);
    let folder = bench.path("mnt/folder");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A failed assertion must end the writer, too.
        let _end = Done(&is_done);
        scope.spawn(|| {
            for round in 0_u32.. {
                if is_done.load(Ordering::Relaxed) {
                    return;
                }
                std::fs::create_dir_all(&folder).expect("a folder");
                for file in 0..200 {
                    let path = folder.join(format!("{file}"));
                    std::fs::write(path, vec![round as u8; 5000]).expect("a file");
                }
                let top = std::fs::File::open(bench.path("mnt")).expect("the top");
                top.sync_all().expect("a commit");
                std::fs::remove_dir_all(&folder).expect("removed");
                top.sync_all().expect("a commit");
            }
        });
        for _ in 0..12 {
            bench.ok(&["tree", "mnt"]);
            let report = bench.ok(&["--json", "restore", "--dry-run", "mnt"]);
            for none in ["\"partly\": 0", "\"lost\": 0"] {
                assert!(report.contains(none), "{report}");
            }
        }
    });
    mounted.end();
    check(&bench.path("image"));
}

/// For a folder on another file system, the message names that file system. For a verb that changes
/// volumes itself, the message tells the user which place to name instead.
#[test]
fn a_folder_is_no_image() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.volume("image", "200M");
    let mounted = Mounted::new(&bench, &[]);
    std::fs::create_dir(bench.path("mnt/folder")).expect("a folder");
    for place in ["mnt", "mnt/folder"] {
        let words = [place, "this verb opens the volume itself", "/image", "not mounted"];
        bench.fails(&["rescue", "zero-log", "--yes", place], 1, &words);
    }
    let elsewhere = bench.path("");
    let words = ["is a directory on ", "no mount of buttress"];
    bench.fails(&["subvolume", "list", text(&elsewhere)], 1, &words);
    bench.fails(&["balance", "status", text(&elsewhere)], 1, &words);
    let words = ["is on ", "no mount of buttress"];
    bench.fails(&["subvolume", "snapshot", text(&elsewhere), "new"], 1, &words);
    bench.fails(&["subvolume", "snapshot", text(&elsewhere), "mnt/new"], 1, &words);
    let words = ["on the volume of its source", " is on "];
    bench.fails(&["subvolume", "snapshot", "mnt", "new"], 2, &words);
    mounted.end();
}
