//! The tree as it is first written.

use super::bytes::mix;
use super::{Scale, Target, at, colliding_names, noise, words};

/// Writes the whole sample into an empty place.
pub fn fill(target: &dyn Target, scale: &Scale) {
    small_files(target, scale);
    big_files(target, scale);
    holes(target, scale);
    names(target);
    hard_links(target, scale);
    collisions(target, scale);
    other_kinds(target);
    attributes(target);
    moves(target, scale);
    times(target);
}

/// Lengths around every limit: empty, inline, a sector, several sectors.
const LENGTHS: [u64; 16] =
    [0, 1, 15, 100, 900, 2000, 2047, 2048, 2049, 4095, 4096, 4097, 6000, 8192, 20_000, 70_000];

fn small_files(target: &dyn Target, scale: &Scale) {
    target.make_dir(b"small", 0o755);
    for dir in 0..scale.dirs {
        target.make_dir(at!("small/d{dir:03}"), 0o755);
        for file in 0..scale.files {
            let chance = mix(scale.seed ^ (dir << 32 | file));
            let name = format!(
                "small/d{dir:03}/file-{file:04}.{}",
                ["txt", "rs", "c"][(chance % 3) as usize]
            );
            let len = LENGTHS[(chance >> 8) as usize % LENGTHS.len()];
            let len = if chance.is_multiple_of(4) { (chance >> 16) % 5000 } else { len } as usize;
            target.make_file(name.as_bytes(), 0o600 | (chance >> 20) as u32 & 0o77);
            let data =
                if chance.is_multiple_of(2) { noise(chance, len) } else { words(chance, len) };
            target.write(name.as_bytes(), 0, &data);
        }
    }
}

fn big_files(target: &dyn Target, scale: &Scale) {
    let len = scale.big_bytes as usize;
    target.make_dir(b"big", 0o750);
    for (name, data) in [
        ("big/noise", noise(scale.seed, len + 1234)),
        ("big/words", words(scale.seed, len)),
        ("big/zeros", vec![0; len / 2]),
    ] {
        target.make_file(name.as_bytes(), 0o644);
        // The pieces match no unit of the format, so that writeback must join them.
        let mut at = 0;
        for piece in data.chunks(300_007) {
            target.write(name.as_bytes(), at, piece);
            at += piece.len() as u64;
        }
    }
    // The file is written backwards, and then again in its middle.
    target.make_file(b"big/backwards", 0o644);
    for place in (0..40_u64).rev() {
        target.write(b"big/backwards", place * 8192, &noise(place, 8192));
    }
    target.sync();
    for place in [3_u64, 17, 18, 31] {
        target.write(b"big/backwards", place * 8192 + 777, &words(place, 5000));
    }
    target.write(b"big/noise", 1_000_003, &words(1, 123_456));
}

fn holes(target: &dyn Target, scale: &Scale) {
    target.make_dir(b"holes", 0o755);
    let file = |name: &str| {
        let name = format!("holes/{name}").into_bytes();
        target.make_file(&name, 0o644);
        name
    };
    let middle = file("in the middle");
    target.write(&middle, 0, &noise(1, 10_000));
    target.write(&middle, 1 << 20, &noise(2, 10_000));
    target.set_len(&middle, 3 << 20);

    let only = file("nothing else");
    target.set_len(&only, 123_456_789);

    let huge = file("a tebibyte");
    target.set_len(&huge, 1 << 40);
    for place in [0, 1 << 33, (1 << 40) - 70_000] {
        target.write(&huge, place, &noise(place, 70_000));
    }

    let punched = file("punched");
    target.write(&punched, 0, &noise(3, 1 << 20));
    target.sync();
    target.punch(&punched, 100_000, 300_000);
    target.punch(&punched, 700_001, 5);
    target.punch(&punched, (1 << 20) - 8192, 1 << 20);

    let cut = file("cut");
    target.write(&cut, 0, &noise(4, 500_000));
    target.sync();
    target.set_len(&cut, 123_457);
    target.set_len(&cut, 400_000);
    target.write(&cut, 390_000, &words(4, 1000));

    let ahead = file("allocated ahead");
    target.allocate(&ahead, 0, 4 << 20, false);
    target.write(&ahead, 1 << 20, &noise(5, 200_001));
    let beyond = file("allocated beyond its end");
    target.write(&beyond, 0, &noise(6, 5000));
    target.allocate(&beyond, 0, 1 << 20, true);
    let small = file("grown from inline");
    target.write(&small, 0, &words(7, 300));
    target.sync();
    target.set_len(&small, 9000);
    let inline = file("allocated, then small");
    target.allocate(&inline, 0, 10_000, true);
    target.write(&inline, 0, &words(8, 77));

    // Many small extents: several leaves of one file.
    let comb = file("comb");
    for tooth in 0..scale.big_bytes / 16_384 {
        target.write(&comb, tooth * 16_384, &noise(tooth, 4096));
    }
}

fn names(target: &dyn Target) {
    target.make_dir(b"names", 0o755);
    let long = [b'n'; 255];
    let odd: [&[u8]; 8] = [
        &long,
        b"with a space",
        b"new\nline",
        b"\xff\xfe not UTF-8 \x80",
        "übermütig-日本語-🧱".as_bytes(),
        b"-rf",
        b"...",
        b"back\\slash",
    ];
    for name in odd {
        let path = [b"names/", name].concat();
        target.make_file(&path, 0o644);
        target.write(&path, 0, name);
    }
    let mut deep = b"names/deep".to_vec();
    for level in 0..40 {
        target.make_dir(&deep, 0o755);
        deep.extend_from_slice(at!("/{level}"));
    }
    target.make_file(&deep, 0o644);
    target.make_dir(b"names/empty", 0o700);
    target.make_dir(at!("names/{}", "d".repeat(255)), 0o711);
}

fn hard_links(target: &dyn Target, scale: &Scale) {
    target.make_dir(b"links", 0o755);
    target.make_dir(b"links/elsewhere", 0o755);
    target.make_file(b"links/original", 0o644);
    target.write(b"links/original", 0, &noise(9, 9000));
    for number in 0..scale.links {
        let name = format!("links/one of a great many names of it {number:05}");
        target.link(b"links/original", name.as_bytes());
    }
    for number in 0..5 {
        target.link(b"links/original", at!("links/elsewhere/{number}"));
    }
    for number in (0..scale.links).step_by(7) {
        let name = format!("links/one of a great many names of it {number:05}");
        target.remove_file(name.as_bytes());
    }
    target.remove_file(b"links/original");
}

fn collisions(target: &dyn Target, scale: &Scale) {
    target.make_dir(b"collide", 0o755);
    target.make_dir(b"collide/links", 0o755);
    let names = colliding_names("", scale.collisions);
    for (number, name) in names.iter().enumerate() {
        let path = format!("collide/{name}");
        target.make_file(path.as_bytes(), 0o644);
        target.write(path.as_bytes(), 0, at!("{number}"));
        let value = vec![b'v'; number];
        target.set_xattr(b"collide/links", &format!("user.{name}"), &value);
    }
    // Colliding names of one inode, so many that they need an extended item.
    for name in &names {
        target.link(at!("collide/{}", names[0]), at!("collide/links/{name}"));
    }
    for name in names.iter().skip(1).step_by(3) {
        target.remove_file(at!("collide/{name}"));
        target.remove_xattr(b"collide/links", &format!("user.{name}"));
    }
}

fn other_kinds(target: &dyn Target) {
    target.make_dir(b"kinds", 0o755);
    target.make_node(b"kinds/fifo", 0o010_640, 0, 0);
    target.make_node(b"kinds/socket", 0o140_755, 0, 0);
    target.make_node(b"kinds/null", 0o020_666, 1, 3);
    target.make_node(b"kinds/large numbers", 0o060_600, 4095, 1_048_575);
    target.make_symlink(b"kinds/relative", b"../big/noise");
    target.make_symlink(b"kinds/dangling", b"/nowhere/at all");
    target.make_symlink(b"kinds/long", &[b'x'; 3800]);
    target.make_symlink(b"kinds/not UTF-8", b"\xff\xfe");
}

/// An access list: owner rwx, user 1000 r--, group r--, mask rw-, others r--.
const ACCESS_LIST: [u8; 44] = {
    let words: [u16; 22] = [
        2, 0, 1, 7, 0xffff, 0xffff, 2, 4, 1000, 0, 4, 4, 0xffff, 0xffff, 16, 6, 0xffff, 0xffff, 32,
        4, 0xffff, 0xffff,
    ];
    let mut bytes = [0; 44];
    let mut index = 0;
    while index < words.len() {
        bytes[2 * index] = (words[index] & 0xff) as u8;
        bytes[2 * index + 1] = (words[index] >> 8) as u8;
        index += 1;
    }
    bytes
};

fn attributes(target: &dyn Target) {
    target.make_dir(b"attributes", 0o1777);
    let file = |name: &str| {
        let name = format!("attributes/{name}").into_bytes();
        target.make_file(&name, 0o644);
        name
    };
    let many = file("many");
    for number in 0..60_u64 {
        let value = noise(number, (number * 29) as usize % 400);
        target.set_xattr(&many, &format!("user.number.{number}"), &value);
    }
    target.set_xattr(&many, "trusted.secret", b"only root");
    target.set_xattr(&many, "security.something", b"\0\x01\x02");
    target.set_xattr(&many, "user.empty", b"");
    target.remove_xattr(&many, "user.number.31");
    target.set_xattr(&many, "user.number.32", &words(1, 2000));
    target.set_xattr(b"attributes", "user.of a directory", b"yes");

    let listed = file("access list");
    target.set_mode(&listed, 0o764);
    target.set_xattr(&listed, "system.posix_acl_access", &ACCESS_LIST);

    let owned = file("owned");
    target.set_owner(&owned, 1000, 4_000_000_000);
    let set_id = file("set-id");
    target.set_mode(&set_id, 0o6755);
    target.make_dir(b"attributes/set-gid", 0o2775);
    target.make_symlink(b"attributes/link of somebody", b"owned");
    target.set_owner(b"attributes/link of somebody", 1000, 1000);
}

fn moves(target: &dyn Target, scale: &Scale) {
    target.make_dir(b"moved", 0o755);
    target.make_dir(b"moved/into", 0o755);
    for number in 0..scale.files {
        let name = format!("moved/before {number}");
        target.make_file(name.as_bytes(), 0o644);
        target.write(name.as_bytes(), 0, name.as_bytes());
        match number % 4 {
            0 => target.rename(name.as_bytes(), at!("moved/into/{number}")),
            1 => target.remove_file(name.as_bytes()),
            // The new name exists already.
            2 => target.rename(name.as_bytes(), b"moved/the last one"),
            _ => {}
        }
    }
    target.make_dir(b"moved/directory", 0o755);
    target.make_file(b"moved/directory/within", 0o644);
    target.rename(b"moved/directory", b"moved/into/directory");
    target.make_dir(b"moved/one", 0o755);
    target.make_file(b"moved/other", 0o644);
    target.exchange(b"moved/one", b"moved/other");
    target.make_dir(b"moved/gone", 0o755);
    target.remove_dir(b"moved/gone");
}

fn times(target: &dyn Target) {
    target.make_dir(b"times", 0o755);
    for (name, seconds, nanoseconds) in [
        ("before 1970", -1_000_000_000, 999_999_999),
        ("1970", 0, 1),
        ("after 2038", 4_000_000_000, 123_456_789),
        ("after 2106", 20_000_000_000, 1),
    ] {
        let path = format!("times/{name}");
        target.make_file(path.as_bytes(), 0o644);
        target.set_times(path.as_bytes(), seconds, nanoseconds);
    }
    target.make_symlink(b"times/link", b"1970");
    target.set_times(b"times/link", 1_500_000_000, 5);
    target.set_times(b"names/empty", 1_600_000_000, 7);
}
