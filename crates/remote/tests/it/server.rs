//! Tests volumes on a real server that speaks S3. If `BUTTRESS_S3` has an address, a server runs
//! there, with the key `test`, the secret `testsecret` and a bucket `bucket`. Otherwise the tests
//! start versitygw, if `BUTTRESS_VERSITYGW` names its program.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_remote::{Error, Options, Site};

use crate::conformance::{LEN, conforms};
use crate::options;

/// A server on a folder of the test, or a server that runs already.
struct Server {
    child: Option<Child>,
    endpoint: String,
}

impl Server {
    fn start(folder: &Path) -> Option<Self> {
        if let Ok(endpoint) = std::env::var("BUTTRESS_S3") {
            return Some(Self { child: None, endpoint });
        }
        let Some(program) = std::env::var_os("BUTTRESS_VERSITYGW") else {
            eprintln!("SKIPPED: neither BUTTRESS_VERSITYGW nor BUTTRESS_S3 is set");
            return None;
        };
        std::fs::create_dir_all(folder.join("data/bucket")).expect("a folder");
        std::fs::create_dir_all(folder.join("side")).expect("a folder");
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.expect("a free port").to_string();
        let mut command = Command::new(program);
        command.args(["--access", "test", "--secret", "testsecret", "--port", &address, "posix"]);
        command.arg("--sidecar").arg(folder.join("side")).arg(folder.join("data"));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = Some(child.expect("versitygw starts"));
        let server = Self { child, endpoint: format!("http://{address}") };
        for _ in 0..600 {
            if TcpStream::connect(&address).is_ok() {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("versitygw does not listen at {address}");
    }

    fn site(&self, volume: &str, secret: &str, options: Options) -> Site {
        let words = format!("access_key_id=test&secret_access_key={secret}&region=us-east-1");
        let place = format!("s3://{volume}?endpoint={}&{words}", self.endpoint);
        Site::of(place.as_ref(), options).expect("a place")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A volume in a bucket behaves as every device does, has one writer, and can be opened again. If
/// the server refuses a request, the error comes at once.
#[test]
fn a_volume_on_a_server_conforms() {
    let dir = tempfile::tempdir().expect("tempdir");
    let Some(server) = Server::start(dir.path()) else { return };
    let site = server.site("bucket/v", "testsecret", options());
    let error = site.open().expect_err("none yet");
    assert!(matches!(error, Error::NoVolume { .. }), "{error}");
    let device = site.create(LEN).expect("an honest server");
    conforms(&device, 5, 300);
    let error = site.open().expect_err("the first lives");
    assert!(matches!(error, Error::Busy { here: true, .. }), "{error}");
    let mut right = vec![0; LEN as usize];
    device.read_at(0, &mut right).expect("whole");
    device.close().expect("a server");
    let reader = server.site("bucket/v", "testsecret", Options { write: false, ..options() });
    let reader = reader.open().expect("whole");
    let mut found = vec![1; LEN as usize];
    reader.read_at(0, &mut found).expect("whole");
    assert!(found == right, "the content differs");
    server.site("bucket/v", "wrong", options()).open().expect_err("a wrong secret");
    server.site("nothing/v", "testsecret", options()).create(LEN).expect_err("no such bucket");
}

/// A volume is written and collected for a while. `BUTTRESS_S3_SECONDS` sets the duration.
/// Meanwhile parts of the server may end and come back. In the end the volume has all flushed data.
#[test]
fn a_volume_on_a_server_stays_whole_under_load() {
    let dir = tempfile::tempdir().expect("tempdir");
    let Some(server) = Server::start(dir.path()) else { return };
    let seconds = std::env::var("BUTTRESS_S3_SECONDS").ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(2));
    let (timeout, min_keep) = (Duration::from_secs(240), Duration::ZERO);
    let options = Options { timeout, min_keep, ..options() };
    let device = server.site("bucket/w", "testsecret", options.clone()).create(LEN);
    let device = device.expect("an honest server");
    let (model, mut rng) = (MemoryDevice::new(LEN), Rng::new(1));
    let (mut rounds, mut longest) = (0, Duration::ZERO);
    while Instant::now() < until || rounds < 10 {
        for _ in 0..8 {
            let at = rng.below(LEN / 4096 - 16) * 4096;
            let mut content = vec![0; 4096 * (1 + rng.below(16) as usize)];
            rng.fill(&mut content);
            device.write_at(at, &content).expect("within");
            model.write_at(at, &content).expect("within");
        }
        let begun = Instant::now();
        device.flush().expect("a server that recovers");
        longest = longest.max(begun.elapsed());
        rounds += 1;
        if rounds % 40 == 0 {
            device.collect().expect("a server that recovers");
        }
    }
    let status = device.status();
    eprintln!("{rounds} commits, the longest took {longest:?}; {status:?}");
    device.close().expect("a server that recovers");
    let reading = Options { write: false, ..options };
    let reader = server.site("bucket/w", "testsecret", reading).open().expect("whole");
    let (mut found, mut right) = (vec![1; LEN as usize], vec![0; LEN as usize]);
    reader.read_at(0, &mut found).expect("whole");
    model.read_at(0, &mut right).expect("whole");
    assert!(found == right, "the content differs");
}

/// A clone lies in another bucket of the server, and reads what it shares from the bucket of its
/// base.
#[test]
fn a_clone_in_another_bucket_of_a_server() {
    let dir = tempfile::tempdir().expect("tempdir");
    if std::env::var_os("BUTTRESS_S3").is_some() {
        eprintln!("SKIPPED: the server that runs has one bucket");
        return;
    }
    let Some(server) = Server::start(dir.path()) else { return };
    std::fs::create_dir_all(dir.path().join("data/second")).expect("a folder");
    let base = server.site("bucket/base", "testsecret", options());
    let device = base.create(LEN).expect("an honest server");
    device.write_at(8192, &[7; 4096]).expect("within");
    device.close().expect("a server");
    let clone = server.site("second/clone", "testsecret", options());
    base.clone_to(&clone).expect("a bucket of the server");
    let device = clone.open().expect("whole");
    let mut found = [0; 4096];
    device.read_at(8192, &mut found).expect("whole");
    assert_eq!(found, [7; 4096]);
    device.write_at(0, &[8; 4096]).expect("within");
    device.close().expect("a server");
    base.delete().expect_err("the clone needs it");
    clone.delete().expect("nothing needs it");
    base.delete().expect("nothing needs it");
}
