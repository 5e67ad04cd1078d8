//! The space that files and folders take, compared with Linux and its tools on the same image.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};

use serde_json::Value;

use crate::checker::check;
use crate::live::{Mounted, has, run};
use crate::{Bench, text};

const KIB: u64 = 1024;

/// A volume with files of all kinds: shared by a clone and by a snapshot, compressed, inline, with
/// holes, preallocated, with two names, overwritten in the middle.
fn volume() -> Bench {
    let bench = crate::bench();
    bench.volume("image", "300M");
    bench.ok(&["subvolume", "create", "image:/s", "image:/s/inner"]);
    let mounted = Mounted::new(&bench, &["-o", "compress=zstd"]);
    let top = bench.path("mnt/s");
    let noise = |len: u64| -> Vec<u8> {
        let mut state = len;
        let step = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..len).map(step).collect()
    };
    fs::create_dir_all(top.join("folder/below")).expect("folders");
    let files = [
        ("folder/text", b"hello ".repeat(200_000)),
        ("folder/below/noise", noise(300 * KIB)),
        ("own", noise(200 * KIB)),
        ("tiny", b"tiny".to_vec()),
        ("inner/more", noise(50_000)),
    ];
    for (name, bytes) in files {
        fs::write(top.join(name), bytes).expect("it is written");
    }
    fs::hard_link(top.join("own"), top.join("own-too")).expect("a link");
    let hole = fs::File::create(top.join("hole")).expect("a file");
    hole.set_len(1 << 20).expect("a size");
    drop(hole);
    run("fallocate", &["-l", "100000", text(&top.join("ahead"))]);
    symlink("own", top.join("link")).expect("a link");
    mounted.end();
    bench.ok(&["cp", "--reflink=always", "image:/s/folder/below/noise", "image:/s/folder/copy"]);
    bench.ok(&["subvolume", "snapshot", "image:/s", "image:/snap"]);
    let mounted = Mounted::new(&bench, &[]);
    let own = fs::File::options().write(true).open(top.join("own")).expect("it is opened");
    own.write_all_at(&noise(8 * KIB), 12 * KIB).expect("it is written");
    drop(own);
    fs::write(top.join("alone"), noise(64 * KIB)).expect("it is written");
    mounted.end();
    bench
}

/// The lines of an output, with `X` in the place of `place`.
fn lines(said: &str, place: &str) -> Vec<String> {
    said.lines().map(|line| line.replace(place, "X").trim_end().to_owned()).collect()
}

/// `btrfs filesystem du` and `compsize` run on a mount of Linux. Our commands print the same
/// figures for the image and for a mount of it.
#[test]
fn files_take_what_linux_says() {
    let needed = ["btrfs", "compsize", "mount", "umount", "fallocate"];
    if !has(&needed, Some("/dev/fuse")) || !crate::live::is_root() {
        return;
    }
    let bench = volume();
    let linux = bench.path("lx");
    fs::create_dir(&linux).expect("a folder");
    let named = ["/s", "/s/folder", "/snap"];
    run("mount", &["-o", "loop,ro", text(&bench.path("image")), text(&linux)]);
    let at = |top: &str| named.map(|name| format!("{top}{name}"));
    let du = |program: &str, top: &str| -> Vec<Vec<String>> {
        let ask = |place: String| lines(&run(program, &["filesystem", "du", "--raw", &place]), top);
        at(top).map(ask).into()
    };
    let wanted = du("btrfs", text(&linux));
    let packed = at(text(&linux)).map(|place| run("compsize", &["-b", &place]));
    run("umount", &[text(&linux)]);

    let ours = bench.path("btrfs");
    symlink(env!("CARGO_BIN_EXE_buttress"), &ours).expect("a link");
    let told = |top: &str| {
        assert_eq!(du(text(&ours), top), wanted, "du of {top}");
        for (place, packed) in at(top).iter().zip(&packed) {
            assert_eq!(bench.ok(&["compsize", "-b", place]), *packed, "{place}");
        }
    };
    let image = format!("{}:", text(&bench.path("image")));
    told(&image);
    let mounted = Mounted::new(&bench, &[]);
    // By a path on the mount, the program finds the socket of the mount.
    let told_by_mount = bench.ok(&["compsize", "-b", text(&bench.path("mnt/s"))]);
    assert_eq!(told_by_mount, packed[0]);
    mounted.end();
    check(&bench.path("image"));
}

/// The exclusive bytes of a folder are the bytes that its deletion frees. Shared bytes stay.
#[test]
fn folders_tell_what_deleting_them_gives_back() {
    if !has(&["umount", "fallocate"], Some("/dev/fuse")) {
        return;
    }
    let bench = volume();
    let rows = |bench: &Bench, place: &str| -> Vec<Value> {
        serde_json::from_str(&bench.ok(&["--json", "du", "--depth", "2", place])).expect("JSON")
    };
    let find = |rows: &[Value], path: &str| -> Value {
        let found = rows.iter().find(|row| row["path"] == path);
        found.unwrap_or_else(|| panic!("no {path} in {rows:?}")).clone()
    };
    let of_image = rows(&bench, "image:/");
    let number = |row: &Value, name: &str| row[name].as_u64().expect("bytes");
    // The items of the subvolume's files lie in leaves that the subvolume shares with the snapshot.
    bench.ok(&["subvolume", "snapshot", "image:/snap", "image:/snap2"]);
    let whole = find(&rows(&bench, "image:/"), "image:/");
    assert_eq!(whole["shared_bytes"], 0, "nothing else shares with the top: {whole}");
    bench.ok(&["subvolume", "delete", "image:/snap2"]);
    let whole = find(&of_image, "image:/");
    assert_eq!(whole["shared_bytes"], 0, "nothing else shares with the top: {whole}");
    let folder = find(&of_image, "image:/s/folder");
    assert_eq!(folder["exclusive_bytes"], 0, "a snapshot has it all: {folder}");
    assert!(number(&folder, "disk_bytes") < number(&folder, "data_bytes"), "packed: {folder}");
    let (s, snap) = (find(&of_image, "image:/s"), find(&of_image, "image:/snap"));
    assert!(number(&s, "exclusive_bytes") >= 64 * KIB + 8 * KIB, "{s}");
    assert!(number(&snap, "exclusive_bytes") < 64 * KIB, "{snap}");
    let mounted = Mounted::new(&bench, &[]);
    let of_mount = rows(&bench, "mnt");
    let place = |row: &Value| row["path"].as_str().expect("a path").replace("image:/", "mnt/");
    for row in &of_image {
        let mut same = find(&of_mount, place(row).trim_end_matches('/'));
        same["path"] = row["path"].clone();
        assert_eq!(&same, row);
    }
    mounted.end();
    bench.ok(&["subvolume", "delete", "image:/snap"]);
    let after = rows(&bench, "image:/");
    let folder = find(&after, "image:/s/folder");
    assert_eq!(folder["shared_bytes"], 0, "nothing else has it: {folder}");
    let table = bench.ok(&["du", "image:/s"]);
    assert!(table.contains("Exclusive") && table.contains("image:/s/folder"), "{table}");
    check(&bench.path("image"));
}

/// The map counts every used byte once, and names files at their places. No name is taken for
/// markup.
#[test]
fn map_shows_everything_in_use() {
    let bench = crate::bench();
    bench.volume("image", "300M");
    fs::write(bench.path("file"), vec![7; 3 << 20]).expect("it is written");
    bench.ok(&["mkdir", "image:/<"]);
    // The path of this file looks like the end of an element.
    bench.ok(&["cp", "file", "image:/</script><b>&"]);
    for file in ["map.html", "map.svg"] {
        bench.ok(&["map", "image", "--output", file]);
    }
    bench.fails(&["map", "image", "--output", "map.png"], 2, &["map.png", ".html"]);
    let map: Value = serde_json::from_str(&bench.ok(&["--json", "map", "image"])).expect("JSON");
    let info: Value = serde_json::from_str(&bench.ok(&["--json", "info", "image"])).expect("JSON");
    let list = |value: &Value| value.as_array().expect("a list").clone();
    for space in list(&info["space"]) {
        let of_kind =
            list(&map["groups"]).into_iter().filter(|group| group["kind"] == space["kind"]);
        let sum = |group: &Value, name: &str| group[name].as_u64().expect("bytes");
        let used: u64 = of_kind.clone().map(|group| sum(&group, "used")).sum();
        assert_eq!(Some(used), space["used"].as_u64(), "{space}");
        let cells = of_kind.flat_map(|group| list(&group["cells"]));
        assert_eq!(cells.map(|cell| sum(&cell, "used")).sum::<u64>(), used, "{space}");
    }
    assert_eq!(map["names"][0]["path"], "</script><b>&");
    let page = fs::read_to_string(bench.path("map.html")).expect("a page");
    assert_eq!(page.matches("<script").count(), 2, "its own alone");
    let asked = page.matches("http").count() - page.matches("http-equiv").count();
    assert_eq!(asked, page.matches("http://www.w3.org/2000/svg").count(), "it asks for nothing");
    let drawing = fs::read_to_string(bench.path("map.svg")).expect("a drawing");
    assert!(drawing.starts_with("<svg ") && drawing.contains("Metadata"), "{drawing}");
}
