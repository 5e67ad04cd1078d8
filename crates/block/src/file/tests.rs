//! Tests of files of the host as devices: refused paths, locks and written bytes.

use std::io::IoSlice;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::process::Command;

use buttress_base::Rng;
use tempfile::TempDir;

use super::*;
use crate::error::NotADevice;

fn image(dir: &TempDir, len: u64) -> PathBuf {
    let path = dir.path().join("image");
    drop(FileDevice::create(&path, len).expect("a new file"));
    path
}

fn temp_dir() -> TempDir {
    tempfile::tempdir().expect("a directory for the test")
}

/// Each kind of path that is not a device has its own message.
#[test]
fn refuses_what_is_not_a_device() {
    let dir = temp_dir();
    let found = |path: &Path| match FileDevice::open(path, OpenOptions::WRITE) {
        Err(Error::NotADevice { found, .. }) => found,
        other => panic!("{other:?}"),
    };
    assert_eq!(found(dir.path()), NotADevice::Directory);
    assert_eq!(found(Path::new("/dev/null")), NotADevice::CharacterDevice);

    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("a named pipe");
    assert_eq!(found(&fifo), NotADevice::Fifo);
    let socket = dir.path().join("socket");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    assert_eq!(found(&socket), NotADevice::Socket);

    let empty = dir.path().join("empty");
    std::fs::write(&empty, b"").expect("a file");
    let error = FileDevice::open(&empty, OpenOptions::READ).expect_err("empty");
    assert!(matches!(error, Error::Empty { .. }), "{error}");
    let error = FileDevice::open(dir.path().join("none"), OpenOptions::READ).expect_err("absent");
    assert!(matches!(error, Error::Open { .. }), "{error}");
    let error = FileDevice::create(dir.path(), 4096).expect_err("a directory");
    assert!(matches!(error, Error::NotADevice { .. }), "{error}");
}

/// F1: a second writer is refused, and the error names the process of the first writer. When the
/// first writer closes the file, the second may open it.
#[test]
fn second_writer_is_told_the_first() {
    let dir = temp_dir();
    let path = image(&dir, 1 << 20);
    let first = FileDevice::open(&path, OpenOptions::WRITE).expect("it is free");
    for options in [OpenOptions::WRITE, OpenOptions::READ] {
        let error = FileDevice::open(&path, options).expect_err("it is locked");
        let Error::Locked { pid, .. } = error else { panic!("{error}") };
        assert_eq!(pid, Some(std::process::id()));
    }
    let error = FileDevice::create(&path, 2 << 20).expect_err("it is locked");
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    assert_eq!(std::fs::metadata(&path).expect("it is there").len(), 1 << 20);

    FileDevice::open(&path, OpenOptions { lock: false, ..OpenOptions::READ })
        .expect("a reader without a lock");
    // The second descriptor stands for a copy that a forked process has inherited.
    let _inherited = first.file.try_clone().expect("one more descriptor");
    drop(first);
    FileDevice::open(&path, OpenOptions::WRITE).expect("it is free again");
}

/// F1: a writer in another process is seen and named too.
#[test]
fn another_process_is_named() {
    let dir = temp_dir();
    let path = image(&dir, 1 << 20);
    // The shell holds the lock itself and waits for its input to close.
    let script = "exec 9<>\"$1\"; flock -n 9 || exit 1; echo held; read -r line";
    let child = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(&path)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(mut child) = child else { return };
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut line).expect("piped");
    if line == "held\n" {
        let error = FileDevice::open(&path, OpenOptions::WRITE).expect_err("the child has it");
        // The program `flock` took the lock on the shell's descriptor, under its own process
        // number. The test only knows that this number is known and is not the test's own.
        let Error::Locked { pid: Some(pid), .. } = error else { panic!("{error}") };
        assert_ne!(pid, std::process::id());
    }
    drop(child.stdin.take());
    child.wait().expect("it is our child");
}

/// F1: readers share a device, and a writer is refused meanwhile.
#[test]
fn readers_share() {
    let dir = temp_dir();
    let path = image(&dir, 1 << 20);
    let first = FileDevice::open(&path, OpenOptions::READ).expect("it is free");
    let second = FileDevice::open(&path, OpenOptions::READ).expect("readers share");
    let error = FileDevice::open(&path, OpenOptions::WRITE).expect_err("readers are inside");
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    let error = first.write_at(0, b"no").expect_err("read only");
    assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    drop((first, second));
    FileDevice::open(&path, OpenOptions::WRITE).expect("they have left");
}

/// F2: the bytes read are the bytes written, whether requests are buffered or direct, aligned or
/// not, joined or not.
#[test]
fn bytes_arrive_in_every_mode() {
    const LEN: u64 = 1 << 20;
    for direct in [false, true] {
        let dir = temp_dir();
        let path = image(&dir, LEN);
        let options = OpenOptions { direct, ..OpenOptions::WRITE };
        let device = match FileDevice::open(&path, options) {
            Ok(device) => device,
            // The filesystem under the tests may have no direct I/O.
            Err(Error::Open { .. }) if direct => return,
            Err(error) => panic!("{error}"),
        };
        let mut model = vec![0_u8; LEN as usize];
        let mut rng = Rng::new(5);
        for _ in 0..300 {
            let unit = if rng.chance(1, 2) { 4096 } else { 1 };
            let start = rng.below(LEN / unit) * unit;
            let len = rng.below((LEN - start).min(65536) / unit + 1) * unit;
            let range = start as usize..(start + len) as usize;
            let mut bytes = AlignedBuf::zeroed(len as usize);
            rng.fill(&mut bytes);
            let cut = (rng.below(len + 1) / unit * unit) as usize;
            match rng.below(4) {
                0 => device.write_at(start, &bytes).expect("within the device"),
                // A `Vec` is aligned only by chance.
                1 => device.write_at(start, &Vec::from(&*bytes)).expect("within the device"),
                2 => {
                    let bufs = [IoSlice::new(&bytes[..cut]), IoSlice::new(&bytes[cut..])];
                    device.write_vectored_at(start, &bufs).expect("within the device");
                }
                _ => {
                    bytes.fill(0);
                    device.discard(start, len).expect("within the device");
                }
            }
            model[range.clone()].copy_from_slice(&bytes);
            let mut found = vec![1; len as usize];
            device.read_at(start, &mut found).expect("within the device");
            assert!(found == model[range], "direct: {direct}");
        }
        device.flush().expect("a file");
        drop(device);
        assert!(std::fs::read(&path).expect("it is there") == model, "direct: {direct}");
    }
}

/// A write with more buffers than the kernel takes in one call succeeds.
#[test]
fn writes_many_buffers() {
    let dir = temp_dir();
    let device = FileDevice::create(dir.path().join("image"), 1 << 20).expect("a new file");
    let bytes: Vec<u8> = (0..5000_u32).map(|n| n as u8).collect();
    let bufs: Vec<_> = bytes.chunks(2).map(IoSlice::new).collect();
    assert!(bufs.len() > IOVEC_MAX);
    device.write_vectored_at(77, &bufs).expect("within the device");
    let mut found = vec![0; bytes.len()];
    device.read_at(77, &mut found).expect("within the device");
    assert_eq!(found, bytes);
}

/// D2: a request past the end is refused, and a file that another program truncated gives an error.
#[test]
fn past_the_end_is_an_error() {
    let dir = temp_dir();
    let path = image(&dir, 8192);
    let device = FileDevice::open(&path, OpenOptions::WRITE).expect("it is free");
    let mut buf = [0; 4096];
    let error = device.read_at(8192, &mut buf).expect_err("past the end");
    assert!(matches!(error, Error::PastEnd { device_len: 8192, .. }), "{error}");
    let error = device.write_at(4097, &buf).expect_err("past the end");
    assert!(matches!(error, Error::PastEnd { .. }), "{error}");
    assert_eq!(std::fs::metadata(&path).expect("it is there").len(), 8192, "D2");

    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(4096))
        .expect("our own file");
    let error = device.read_at(4096, &mut buf).expect_err("cut");
    assert!(matches!(error, Error::PastEnd { device_len: 4096, .. }), "{error}");
}

/// A created file is sparse; an existing one is grown and never truncated.
#[test]
fn creates_sparse_files() {
    let dir = temp_dir();
    let path = dir.path().join("image");
    let device = FileDevice::create(&path, 1 << 32).expect("a new file");
    assert_eq!(device.len(), 1 << 32);
    assert!(!device.is_block_device());
    assert!(std::fs::metadata(&path).expect("it is there").blocks() < 1024);
    drop(device);
    assert_eq!(FileDevice::create(&path, 4096).expect("it is there").len(), 1 << 32);
    assert_eq!(FileDevice::create(&path, 1 << 33).expect("it is there").len(), 1 << 33);
}

/// Checks length, lock (F1), writes and discards of a block device.
#[test]
#[ignore = "overwrites the block device named in BUTTRESS_TEST_BLOCK_DEVICE"]
fn serves_a_block_device() {
    let path = std::env::var_os("BUTTRESS_TEST_BLOCK_DEVICE").expect("the name of a device");
    for direct in [false, true] {
        let options = OpenOptions { direct, ..OpenOptions::WRITE };
        let device = FileDevice::open(&path, options).expect("it is free");
        assert!(device.is_block_device());
        assert!(device.len() >= 8 << 20);
        let error = FileDevice::open(&path, OpenOptions::WRITE).expect_err("we have it");
        assert!(matches!(error, Error::Locked { .. } | Error::Busy { .. }), "{error}");

        let mut bytes = AlignedBuf::zeroed(1 << 20);
        Rng::new(8).fill(&mut bytes);
        device.write_at(4 << 20, &bytes).expect("within the device");
        device.discard((4 << 20) + 100, (1 << 20) - 200).expect("understood, or not");
        device.flush().expect("a device");
        let mut found = AlignedBuf::zeroed(1 << 20);
        device.read_at(4 << 20, &mut found).expect("within the device");
        assert_eq!(found[..512], bytes[..512], "only whole sectors are given up");
        assert_eq!(found[(1 << 20) - 512..], bytes[(1 << 20) - 512..]);
        let error = device.read_at(device.len() - 100, &mut found).expect_err("past the end");
        assert!(matches!(error, Error::PastEnd { .. }), "{error}");
    }
}

/// Whether this program may attach loop devices.
fn has_loops() -> bool {
    let may = File::options().write(true).open("/dev/loop-control").is_ok();
    assert!(may || std::env::var_os("BUTTRESS_REQUIRE_LINUX").is_none(), "lacking: loop devices");
    may
}

/// Attaches a loop device.
fn attach(path: &Path) -> PathBuf {
    let output = Command::new("losetup").args(["--find", "--show"]).arg(path).output();
    PathBuf::from(String::from_utf8_lossy(&output.expect("losetup").stdout).trim_end())
}

fn detach(name: &Path) {
    Command::new("losetup").arg("--detach").arg(name).status().expect("losetup");
}

/// F1: a file that a loop device uses is refused to writers, with the loop device's name.
#[test]
fn a_file_under_a_loop_device_is_refused() {
    if !has_loops() {
        return;
    }
    let dir = temp_dir();
    let path = image(&dir, 1 << 20);
    let by = attach(&path);
    let writer = FileDevice::open(&path, OpenOptions::WRITE);
    let reader = FileDevice::open(&path, OpenOptions::READ);
    detach(&by);
    match writer {
        Err(Error::Looped { by: found, .. }) => assert_eq!(found, by),
        other => panic!("{other:?}"),
    }
    reader.expect("a reader");
}

/// F1: each way to open a block device for writing excludes other claims. It is refused while
/// another program has claimed the device, and while a loop device lies over it.
#[test]
fn each_writer_claims_a_block_device() {
    if !has_loops() {
        return;
    }
    let dir = temp_dir();
    let path = image(&dir, 1 << 20);
    let name = attach(&path);
    let unlocked = OpenOptions { lock: false, ..OpenOptions::WRITE };
    let open = |way: &str| match way {
        "open" => FileDevice::open(&name, OpenOptions::WRITE),
        "without a lock" => FileDevice::open(&name, unlocked),
        _ => FileDevice::create(&name, 1 << 20),
    };
    let mut found = Vec::new();
    for way in ["open", "without a lock", "create"] {
        let claimed = claim(&name);
        let refused = matches!(open(way), Err(Error::Busy { .. }));
        drop(claimed);
        let device = open(way);
        let excludes = device.is_ok() && matches!(claim(&name), Err(Error::Busy { .. }));
        drop(device);
        // A loop device claims no device that it lies over.
        let above = attach(&name);
        let is_looped = matches!(open(way), Err(Error::Looped { by, .. }) if by == above);
        detach(&above);
        found.push((way, refused, excludes, is_looped));
    }
    detach(&name);
    assert!(
        found.iter().all(|(_, refused, excludes, looped)| *refused && *excludes && *looped),
        "{found:?}"
    );
}

/// Zeroed ranges read as zeroes, known holes are holes, and no written byte is reported as a hole.
#[test]
fn zeroes_and_tells_holes() {
    const LEN: u64 = 1 << 20;
    let dir = temp_dir();
    let device = FileDevice::create(dir.path().join("image"), LEN).expect("a new file");
    let mut model = vec![0_u8; LEN as usize];
    let mut rng = Rng::new(21);
    for _ in 0..200 {
        let start = rng.below(LEN);
        let len = rng.below((LEN - start).min(200_000) + 1);
        let range = start as usize..(start + len) as usize;
        match rng.below(4) {
            0 => device.write_zeroes(start, len, Space::Keep).expect("within the device"),
            1 | 2 => device.write_zeroes(start, len, Space::Free).expect("within the device"),
            _ => {
                model[range.clone()].fill(7);
                device.write_at(start, &model[range.clone()]).expect("within the device");
                let extent = device.extent_at(start, len).expect("within the device");
                assert!(len == 0 || extent.content == Content::Data);
                continue;
            }
        }
        model[range].fill(0);
    }
    let mut found = vec![1; LEN as usize];
    device.read_at(0, &mut found).expect("within the device");
    assert!(found == model);
    let (mut at, mut holes) = (0, 0);
    while at < LEN {
        let extent = device.extent_at(at, LEN - at).expect("within the device");
        assert!(extent.len > 0 && at + extent.len <= LEN, "{extent:?}");
        let bytes = &model[at as usize..(at + extent.len) as usize];
        if extent.content == Content::Hole {
            holes += 1;
            assert!(bytes.iter().all(|&byte| byte == 0), "at {at}");
        }
        at += extent.len;
    }
    assert!(holes > 0, "this filesystem tells holes");
    assert!(matches!(device.extent_at(LEN - 1, 2), Err(Error::PastEnd { .. })));
}
