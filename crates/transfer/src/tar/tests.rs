use proptest::prelude::*;

use super::*;

fn put_octal(field: &mut [u8], value: u64) {
    let text = format!("{value:0width$o}", width = field.len() - 1);
    field[..text.len()].copy_from_slice(text.as_bytes());
}

fn seal(block: &mut [u8; BLOCK]) {
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
    let text = format!("{sum:06o}\0 ");
    block[148..156].copy_from_slice(text.as_bytes());
}

fn header(name: &str, kind: u8, size: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[..name.len()].copy_from_slice(name.as_bytes());
    put_octal(&mut block[100..108], 0o644);
    put_octal(&mut block[108..116], 7);
    put_octal(&mut block[116..124], 8);
    put_octal(&mut block[124..136], size);
    put_octal(&mut block[136..148], 1000);
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut block);
    block
}

/// A header, and content up to the next block.
fn with(block: [u8; BLOCK], content: &[u8]) -> Vec<u8> {
    let mut bytes = block.to_vec();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

fn pax(lines: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in lines {
        let bare = key.len() + value.len() + 3;
        let len = (bare..).find(|len| bare + len.to_string().len() == *len).expect("a length");
        bytes.extend(format!("{len} {key}=").bytes());
        bytes.extend(*value);
        bytes.push(b'\n');
    }
    with(header("pax", b'x', bytes.len() as u64), &bytes)
}

/// Reads all entries with their content.
fn read(bytes: &[u8]) -> io::Result<Vec<(Entry, Vec<u8>)>> {
    let mut archive = Archive::new(bytes);
    let mut all = Vec::new();
    while let Some(entry) = archive.next()? {
        let len: u64 = entry.runs.iter().map(|run| run.1).sum();
        let mut content = vec![0; usize::try_from(len).unwrap_or(usize::MAX).min(1 << 20)];
        let read = archive.read(&mut content)?;
        content.truncate(read);
        all.push((entry, content));
    }
    Ok(all)
}

fn one(bytes: &[u8]) -> (Entry, Vec<u8>) {
    let mut all = read(bytes).expect("an archive");
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn an_entry_has_what_its_header_says() {
    let (entry, content) = one(&with(header("a/b", b'0', 3), b"abc"));
    assert_eq!((entry.path.as_slice(), content.as_slice()), (&b"a/b"[..], &b"abc"[..]));
    assert_eq!((entry.mode, entry.uid, entry.gid, entry.mtime), (0o644, 7, 8, (1000, 0)));
    assert_eq!((entry.size, entry.runs), (3, vec![(0, 3)]));
    let (entry, _) = one(&header("dir/", b'0', 0));
    assert_eq!(entry.kind, Kind::Directory);
    let mut long = header("name", b'5', 0);
    long[345..350].copy_from_slice(b"first");
    seal(&mut long);
    assert_eq!(one(&long).0.path, b"first/name");
}

/// PAX lines override the header, and lines of an entry override global lines.
#[test]
fn extensions_change_the_entry() {
    let global = {
        let mut bytes = pax(&[("uid", b"1"), ("gid", b"2")]);
        bytes[156] = b'g';
        let mut block = [0; BLOCK];
        block.copy_from_slice(&bytes[..BLOCK]);
        seal(&mut block);
        bytes[..BLOCK].copy_from_slice(&block);
        bytes
    };
    let own = pax(&[
        ("path", "ä".repeat(150).as_bytes()),
        ("uid", b"3000000000"),
        ("mtime", b"-1.25"),
        ("SCHILY.xattr.user.b", b"with = and\nline"),
        ("SCHILY.xattr.user.a", b""),
        ("SCHILY.acl.access", b"user::rw-"),
        ("SCHILY.acl.ace", b"owner@:rw:allow"),
        ("uname", b"ada"),
    ]);
    let (entry, _) = one(&[global, own, header("short", b'0', 0).to_vec()].concat());
    assert_eq!(entry.path, "ä".repeat(150).as_bytes());
    assert_eq!((entry.uid, entry.gid, entry.mtime), (3_000_000_000, 2, (-2, 750_000_000)));
    let names: Vec<_> = entry.xattrs.iter().map(|(name, _)| name.as_slice()).collect();
    assert_eq!(names, [b"user.a", b"user.b"]);
    assert_eq!(entry.acl.as_deref(), Some(&b"user::rw-"[..]));
    assert!(entry.has_other_acl && entry.default_acl.is_none());
    assert_eq!(entry.names.0, b"ada");
    let name = [vec![b'n'; 200], vec![0]].concat();
    let long = with(header("././@LongLink", b'L', 201), &name);
    assert_eq!(one(&[long, header("n", b'2', 0).to_vec()].concat()).0.path, &name[..200]);
}

/// Files with holes in each of the four forms.
#[test]
fn sparse_files_have_their_parts() {
    let content = [b"one".repeat(4), b"two".repeat(2)].concat();
    let expected = (1000, vec![(100, 12), (500, 6)]);
    let check = |bytes: &[u8]| {
        let (entry, found) = one(bytes);
        assert_eq!((entry.size, entry.runs), expected);
        assert_eq!(found, content);
        entry.path
    };
    let stored = content.len() as u64;
    let plain = with(header("x", b'0', stored), &content);
    let parts: &[(&str, &[u8])] = &[
        ("GNU.sparse.size", b"1000"),
        ("GNU.sparse.offset", b"100"),
        ("GNU.sparse.numbytes", b"12"),
        ("GNU.sparse.offset", b"500"),
        ("GNU.sparse.numbytes", b"6"),
    ];
    assert_eq!(check(&[pax(parts), plain.clone()].concat()), b"x");
    let map: &[(&str, &[u8])] = &[
        ("GNU.sparse.size", b"1000"),
        ("GNU.sparse.map", b"100,12,500,6"),
        ("GNU.sparse.name", b"y"),
    ];
    assert_eq!(check(&[pax(map), plain].concat()), b"y");
    let newest: &[(&str, &[u8])] = &[
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"z"),
        ("GNU.sparse.realsize", b"1000"),
    ];
    let mut inner = b"2\n100\n12\n500\n6\n".to_vec();
    inner.resize(BLOCK, 0);
    inner.extend(&content);
    let inner = with(header("GNUSparseFile.1/z", b'0', inner.len() as u64), &inner);
    assert_eq!(check(&[pax(newest), inner].concat()), b"z");
    let mut old = header("w", b'S', stored);
    old[257..265].copy_from_slice(b"ustar  \0");
    for (at, number) in [(386, 100), (398, 12), (410, 500), (422, 6), (483, 1000)] {
        put_octal(&mut old[at..at + 12], number);
    }
    seal(&mut old);
    assert_eq!(check(&with(old, &content)), b"w");
    // The second part stands in a block of its own.
    old[410..434].fill(0);
    old[482] = 1;
    seal(&mut old);
    let mut more = [0; BLOCK];
    put_octal(&mut more[..12], 500);
    put_octal(&mut more[12..24], 6);
    let bytes = [old.to_vec(), with(more, &content)].concat();
    assert_eq!(check(&bytes), b"w");
}

/// T1: a contradiction in an archive is an error.
#[test]
fn damaged_archives_are_errors() {
    let whole = with(header("x", b'0', 3), b"abc");
    let mut sum = whole.clone();
    sum[3] = 1;
    let wrong_map = |map: &[u8]| {
        let lines: &[(&str, &[u8])] = &[("GNU.sparse.size", b"10"), ("GNU.sparse.map", map)];
        [pax(lines), whole.clone()].concat()
    };
    for (why, bytes) in [
        ("checksum", sum),
        ("no tar archive", vec![7; 2000]),
        ("compressed", [vec![0x1f, 0x8b], vec![0; 600]].concat()),
        ("within a block", whole[..300].to_vec()),
        ("within a file", whole[..514].to_vec()),
        ("unknown kind", header("x", b'?', 0).to_vec()),
        ("several volumes", header("x", b'M', 0).to_vec()),
        ("overlap", wrong_map(b"9,3")),
        ("overlap", wrong_map(b"2,1,2,2")),
        ("not what is stored", wrong_map(b"0,2")),
        ("cut", wrong_map(b"0,2,1")),
        ("too long", header("x", b'x', 1 << 30).to_vec()),
    ] {
        let error = read(&bytes).expect_err(why).to_string();
        assert!(error.contains(why), "{why}: {error}");
    }
}

proptest! {
    /// T1: any bytes are an archive or an error, and no file has parts past its end.
    #[test]
    fn any_bytes_are_taken(
        kind in any::<u8>(),
        size in 0_u64..3000,
        fields in prop::collection::vec((0_usize..BLOCK, any::<u8>()), 0..8),
        lines in prop::collection::vec(("(path|size|uid|mtime|GNU.sparse.(size|map|major|offset|realsize|numbytes)|SCHILY.xattr.a)", "[0-9,.\\-\n]{0,12}"), 0..5),
        tail in prop::collection::vec(any::<u8>(), 0..3000),
    ) {
        let lines: Vec<_> = lines.iter().map(|(key, value)| (key.as_str(), value.as_bytes())).collect();
        let mut block = header("name", kind, size);
        for (at, byte) in fields {
            block[at] = byte;
        }
        seal(&mut block);
        let bytes = [pax(&lines), block.to_vec(), tail].concat();
        if let Ok(all) = read(&bytes) {
            for (entry, _) in all {
                let ends = entry.runs.iter().map(|(offset, len)| offset + len);
                prop_assert!(ends.max().unwrap_or(0) <= entry.size);
            }
        }
    }
}

/// T1: all extensions together have one limit, however many entries of extensions they come in.
#[test]
fn extensions_have_one_limit_together() {
    let value = vec![b'v'; 1 << 20];
    for global in 0..=5 {
        let mut bytes = Vec::new();
        for number in 0..5 {
            let mut one = pax(&[("comment", &value)]);
            if number < global {
                one[156] = b'g';
                let mut block: [u8; BLOCK] = one[..BLOCK].try_into().expect("a block");
                seal(&mut block);
                one[..BLOCK].copy_from_slice(&block);
            }
            bytes.extend(one);
        }
        bytes.extend(with(header("a", b'0', 3), b"abc"));
        read(&bytes).expect_err("five MiB are too much");
        let len = bytes.len();
        let two = pax(&[("comment", &value)]).len() * 2;
        assert_eq!(read(&bytes[two..len]).expect("three MiB are not").len(), 1);
    }
}
