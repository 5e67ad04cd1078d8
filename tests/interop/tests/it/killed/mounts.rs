//! Several mounts of one volume, each with programs at work, when their server is killed. Every
//! program ends with an error, and all synced data is there.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use buttress_base::Rng;
use buttress_interop::linux::{Images, can_mount_fuse, has_program, run};
use buttress_interop::program::buttress;
use buttress_interop::scratch::Scratch;
use buttress_sim::campaign;

use super::check_volume;

/// A program that does not end in this time hangs.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Two subvolumes, one of them at two places.
const PLACES: [(&str, &str); 3] = [("a", "a"), ("b", "b"), ("a-again", "a")];

/// Loops that only an error ends. The first prints each durable line. Each loop makes requests that
/// reach the server again and again: from its caches, the kernel would answer even without a
/// server.
const LOOPS: [&str; 5] = [
    "i=0; while echo line-$i >>\"$0\" && sync \"$0\"; do echo $i; i=$((i + 1)); done; exit 1",
    "while mkdir \"$0\" && echo x >\"$0/x\" && mv \"$0/x\" \"$0/y\" && rm -r \"$0\"; do :; done; exit 1",
    "while ls -lR . >/dev/null; stat . >/dev/null; touch \"$0\"; do :; done; exit 1",
    "fio --name=f --filename=\"$0\" --rw=randwrite --size=4m --time_based --runtime=1h \\
        --ioengine=mmap --fsync=64 --output=/dev/null; exit 1",
    "fio --name=f --filename=\"$0\" --rw=randrw --size=4m --time_based --runtime=1h \\
        --ioengine=libaio --iodepth=8 --direct=1 --output=/dev/null; exit 1",
];

/// A program at work in a place. It is killed when this value is dropped.
struct Running {
    child: Child,
    what: String,
}

impl Running {
    fn new(place: &Path, at: usize) -> Self {
        let what = format!("{} in {}", LOOPS[at], place.display());
        let name = format!("{}-{at}", place.file_name().expect("it has a name").to_string_lossy());
        let mut command = Command::new("bash");
        command.args(["-c", LOOPS[at], &name]).current_dir(place);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self { child: command.spawn().expect("bash starts"), what }
    }

    /// Waits for the program's end, which must be a failure.
    #[track_caller]
    fn ends(mut self, about: &str) {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                assert_ne!(status, ExitStatus::default(), "{about}: {}", self.what);
                return;
            }
            assert!(begun.elapsed() < TIMEOUT, "{about}: hangs: {}", self.what);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

/// Mounts of a volume at several places. They are unmounted when this value is dropped.
struct Places {
    places: Vec<PathBuf>,
}

impl Places {
    fn new(image: &str, scratch: &Scratch, transport: &str) -> Self {
        let mut mounted = Self { places: Vec::new() };
        for (name, subvolume) in PLACES {
            let place = scratch.join(name);
            std::fs::create_dir_all(&place).expect("a folder");
            let options = format!("subvol={subvolume},{transport}");
            buttress(["mount", image, place.to_str().expect("ASCII"), "-o", &options]);
            mounted.places.push(place);
        }
        mounted
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        for place in &self.places {
            let _ = Command::new("umount").args(["--lazy", "-i"]).arg(place).status();
        }
    }
}

/// The server is killed at a moment that the seed chooses, while programs work in all places.
#[test]
fn killed_under_all_mounts_of_a_volume() {
    let programs = ["fio", "umount", "btrfs"];
    if !can_mount_fuse()
        || !rustix::process::geteuid().is_root()
        || !programs.iter().all(|p| has_program(p))
    {
        return;
    }
    let kills = std::env::var("BUTTRESS_KILLS").map_or(2, |n| n.parse().expect("a number"));
    let images = Images::new(1, 0);
    std::fs::remove_file(images.path()).expect("it was just made");
    let image = images.path().to_str().expect("ASCII");
    buttress(["mkfs", image, "--size", "512M"]);
    for name in ["a", "b"] {
        buttress(["subvolume", "create", &format!("{image}:/{name}")]);
    }
    let scratch = Scratch::new();
    let mut rng = Rng::new(campaign::round());
    for number in 0..kills {
        let about = format!("round {}, kill {number}", campaign::round());
        let transport = if number % 2 == 0 { "io_uring" } else { "noio_uring" };
        let mounted = Places::new(image, &scratch, transport);
        let server = buttress_block::locked_by(images.path()).expect("it is served");
        let mut works = Vec::new();
        let mut words = Vec::new();
        for place in &mounted.places {
            for at in 0..LOOPS.len() {
                let mut running = Running::new(place, at);
                let out = running.child.stdout.take().expect("piped");
                if at == 0 {
                    let last = || BufReader::new(out).lines().map_while(Result::ok).last();
                    words.push((place.join(run_name(place)), std::thread::spawn(last)));
                }
                works.push(running);
            }
        }
        std::thread::sleep(Duration::from_millis(100 + rng.below(1500)));
        run("kill", ["-KILL", &server.to_string()]);
        for work in works {
            work.ends(&about);
        }
        let words = words.into_iter().map(|(path, last)| (path, last.join().expect("no panic")));
        let words: Vec<_> = words.collect();
        drop(mounted);
        check_volume(images.paths(), &about);
        let mounted = Places::new(image, &scratch, transport);
        for (path, last) in words {
            let Some(last) = last else { continue };
            let text = std::fs::read_to_string(&path).expect("it was synced");
            let is_there = text.lines().any(|line| line == format!("line-{last}"));
            assert!(is_there, "{about}: {} lacks line {last}", path.display());
            campaign::count("acknowledged", last.parse().expect("a number"));
        }
        for place in &mounted.places {
            run("bash", ["-c", "rm -rf \"$0\"/*", place.to_str().expect("ASCII")]);
        }
        for place in &mounted.places {
            buttress(["umount", place.to_str().expect("ASCII")]);
        }
        images.check();
    }
    campaign::count("kills", kills);
}

/// The name of the file that the first loop appends to.
fn run_name(place: &Path) -> String {
    format!("{}-0", place.file_name().expect("it has a name").to_string_lossy())
}
