//! fs-verity through a mount, by the program `fsverity` where it is installed, and by ioctl(2).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use crate::commands::{GET_INODE_FLAGS, NOCOW, SET_INODE_FLAGS, call, number};
use crate::mounted::{FEW_HANDLES, mounted, mounted_with};

const ENABLE: u64 = 0x4080_6685;
const MEASURE: u64 = 0xc004_6686;
const VERITY: u64 = 0x0010_0000;

const EPERM: i32 = 1;
const EEXIST: i32 = 17;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const ETXTBSY: i32 = 26;
const ENODATA: i32 = 61;
const ENOPKG: i32 = 65;
const EOVERFLOW: i32 = 75;
const EMSGSIZE: i32 = 90;

fn argument(hash: u32, block: u32, salt: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 128];
    for (at, number) in [(0, 1), (4, hash), (8, block), (12, salt.len() as u32)] {
        bytes[at..at + 4].copy_from_slice(&number.to_ne_bytes());
    }
    bytes[16..24].copy_from_slice(&(salt.as_ptr() as u64).to_ne_bytes());
    bytes
}

fn enable(path: &Path, hash: u32, block: u32, salt: &[u8]) -> Result<(), i32> {
    let file = File::open(path).expect("it opens");
    let mut bytes = argument(hash, block, salt);
    call(&file, ENABLE, &mut bytes)
}

/// As [`enable`], for a file that was just closed: the kernel sends the release a little later.
fn enable_closed(path: &Path, salt: &[u8]) -> Result<(), i32> {
    loop {
        match enable(path, 1, 4096, salt) {
            Err(ETXTBSY) => std::thread::yield_now(),
            done => return done,
        }
    }
}

fn measure(path: &Path) -> Result<Vec<u8>, i32> {
    let file = File::open(path).expect("it opens");
    let mut bytes = [0_u8; 68];
    bytes[2] = 64;
    call(&file, MEASURE, &mut bytes)?;
    Ok(bytes[4..4 + usize::from(bytes[2])].to_vec())
}

/// What the program `fsverity` computes for a file.
fn theirs(args: &[&str], path: &Path) -> Option<String> {
    let output = Command::new("fsverity").args(args).arg(path).output();
    let Ok(output) = output else {
        eprintln!("not checked: fsverity is not installed");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(said.split(' ').next().unwrap_or_default().to_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn programs_enable_and_measure() {
    let Some(mounted) = mounted_with(FEW_HANDLES) else { return };
    let top = mounted.path("");
    let top = top.as_path();
    let data: Vec<u8> = (0..300_000_u32).map(|at| (at * 7 + at / 255) as u8).collect();
    let (file, other) = (top.join("file"), top.join("other"));
    fs::write(&file, &data).expect("written");
    fs::write(&other, &data).expect("written");
    assert_eq!(measure(&file), Err(ENODATA));
    assert_eq!(enable(top, 1, 4096, b""), Err(EISDIR));
    assert_eq!(enable(&file, 3, 4096, b""), Err(ENOPKG));
    assert_eq!(enable(&file, 1, 4095, b""), Err(EINVAL));
    assert_eq!(enable(&file, 1, 4096, &[1; 33]), Err(EMSGSIZE));
    let writer = OpenOptions::new().append(true).open(&file).expect("it opens");
    assert_eq!(enable(&file, 1, 4096, b""), Err(ETXTBSY));
    drop(writer);
    assert_eq!(enable_closed(&file, b""), Ok(()));
    assert_eq!(enable(&file, 1, 4096, b""), Err(EEXIST));
    let digest = measure(&file).expect("it has a tree");
    if let Some(theirs) = theirs(&["digest"], &other) {
        assert_eq!(format!("sha256:{}", hex(&digest)), theirs);
    }
    if let Some(measured) = theirs(&["measure"], &file) {
        assert_eq!(format!("sha256:{}", hex(&digest)), measured);
    }
    let opened = File::open(&file).expect("it opens");
    let mut short = [0_u8; 4];
    short[2] = 31;
    assert_eq!(call(&opened, MEASURE, &mut short), Err(EOVERFLOW));

    let refused = |done: io::Result<File>| done.map(drop).map_err(|error| error.raw_os_error());
    let how = OpenOptions::new().write(true).clone();
    assert_eq!(refused(how.open(&file)), Err(Some(EPERM)));
    assert_eq!(refused(OpenOptions::new().append(true).open(&file)), Err(Some(EPERM)));
    assert_eq!(refused(how.clone().truncate(true).open(&file)), Err(Some(EPERM)));
    let cut = Command::new("truncate").args(["-s", "5"]).arg(&file).output();
    assert!(!cut.expect("it runs").status.success());
    assert_eq!(fs::read(&file).expect("it reads"), data);

    // `lsattr` shows the flag, and `chattr` neither sets nor clears it.
    let flags = number(&opened, GET_INODE_FLAGS, 0).expect("flags");
    assert_eq!(flags & VERITY, VERITY);
    number(&opened, SET_INODE_FLAGS, 0x80).expect("other flags can be set");
    assert_eq!(number(&opened, GET_INODE_FLAGS, 0).expect("flags"), VERITY | 0x80);
    let plain = File::open(&other).expect("it opens");
    number(&plain, SET_INODE_FLAGS, VERITY).expect_err("only the tree sets it");

    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
    fs::rename(&file, top.join("renamed")).expect("a name");
    fs::hard_link(top.join("renamed"), top.join("second")).expect("a name");
    assert_eq!(measure(&top.join("second")), Ok(digest));

    if Command::new("fsverity").arg("--version").output().is_ok() {
        let args = ["--hash-alg=sha512", "--block-size=1024", "--salt=0011ff"];
        let signed = top.join("signed");
        fs::write(&signed, &data).expect("written");
        let status = Command::new("fsverity").arg("enable").arg(&signed).args(args).status();
        assert!(status.expect("it runs").success());
        let expected = theirs(&[&["digest"], &args[..]].concat(), &other);
        assert_eq!(theirs(&["measure"], &signed), expected);
    }
}

/// While a command waits for a writer, an open that would cut the file is refused. It cuts nothing.
#[test]
fn a_file_is_not_cut_while_its_tree_begins() {
    let Some(mounted) = mounted() else { return };
    let file = mounted.path("file");
    let raw = |done: io::Result<File>| done.map_err(|error| error.raw_os_error());
    let append = || raw(OpenOptions::new().append(true).open(&file));
    for _ in 0..20 {
        fs::write(&file, b"content").expect("written");
        let writer = append().expect("it opens");
        let is_refused = std::thread::scope(|scope| {
            let command = scope.spawn(|| enable(&file, 1, 4096, b""));
            while append().is_ok() && !command.is_finished() {
                std::thread::yield_now();
            }
            let cut = raw(OpenOptions::new().write(true).truncate(true).open(&file));
            assert_eq!(command.join().expect("no panic"), Err(ETXTBSY));
            // On a busy machine the command may have ended before.
            cut.err() == Some(Some(ETXTBSY))
        });
        drop(writer);
        if is_refused {
            assert_eq!(fs::read(&file).expect("it reads"), b"content");
            return;
        }
    }
    panic!("no open met the command");
}

/// Data that was changed on the device is not read through a mount, and the rest of the file is.
#[test]
fn changed_content_gives_an_error() {
    let Some(mounted) = mounted() else { return };
    let data: Vec<u8> = (0..40_960_u32).map(|at| (at * 13 + at / 251) as u8).collect();
    let file = mounted.path("file");
    {
        // `chattr +C` leaves the checksums out.
        let made = File::create(&file).expect("a file");
        number(&made, SET_INODE_FLAGS, NOCOW).expect("flags");
    }
    fs::write(&file, &data).expect("written");
    assert_eq!(enable_closed(&file, b"salt"), Ok(()));
    // The kernel forgets the pages.
    let mounted = mounted.again();
    let image = OpenOptions::new().read(true).write(true).open(mounted.image()).expect("it");
    let mut block = vec![0; 4096];
    let at = (0..).map(|number| number * 4096).find(|at| {
        image.read_exact_at(&mut block, *at).expect("the content comes before the end");
        block == data[..4096]
    });
    let at = at.expect("it is there") + 8192 + 77;
    image.write_all_at(&[!data[8192 + 77]], at).expect("written");
    let mut opened = File::open(&file).expect("it opens");
    let how = rustix::fs::Advice::Random;
    rustix::fs::fadvise(&opened, 0, None, how).expect("advice");
    let mut buf = [0; 4096];
    opened.read_exact(&mut buf).expect("the first block is right");
    assert_eq!(buf, data[..4096]);
    let error = fs::read(&file).expect_err("the third block is wrong");
    assert_eq!(error.raw_os_error(), Some(5));
}
