//! Tests of volumes on a real S3 server: versitygw, if `BUTTRESS_VERSITYGW` names its program.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use buttress_block::Device;
use buttress_remote::{Error, Options, Site};

use crate::conformance::{LEN, conforms};
use crate::options;

/// A server on a folder of the test.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(folder: &Path) -> Option<Self> {
        let Some(program) = std::env::var_os("BUTTRESS_VERSITYGW") else {
            eprintln!("SKIPPED: BUTTRESS_VERSITYGW does not name versitygw");
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
        let server = Self { child: child.expect("versitygw starts"), address };
        for _ in 0..600 {
            if TcpStream::connect(&server.address).is_ok() {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("versitygw does not listen at {}", server.address);
    }

    fn site(&self, bucket: &str, secret: &str, options: Options) -> Site {
        let words = format!("access_key_id=test&secret_access_key={secret}&region=us-east-1");
        let place = format!("s3://{bucket}/v?endpoint=http://{}&{words}", self.address);
        Site::of(place.as_ref(), options).expect("a place")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A volume in a bucket behaves as every device does, has one writer, and can be opened again. If
/// the server refuses a request, the error comes at once.
#[test]
fn a_volume_on_a_server_conforms() {
    let dir = tempfile::tempdir().expect("tempdir");
    let Some(server) = Server::start(dir.path()) else { return };
    let site = server.site("bucket", "testsecret", options());
    let error = site.open().expect_err("none yet");
    assert!(matches!(error, Error::NoVolume { .. }), "{error}");
    let device = site.create(LEN).expect("an honest server");
    conforms(&device, 5, 300);
    let error = site.open().expect_err("the first lives");
    assert!(matches!(error, Error::Busy { here: true, .. }), "{error}");
    let mut right = vec![0; LEN as usize];
    device.read_at(0, &mut right).expect("whole");
    device.close().expect("a server");
    let reader = server.site("bucket", "testsecret", Options { write: false, ..options() });
    let reader = reader.open().expect("whole");
    let mut found = vec![1; LEN as usize];
    reader.read_at(0, &mut found).expect("whole");
    assert!(found == right, "the content differs");
    server.site("bucket", "wrong", options()).open().expect_err("a wrong secret");
    server.site("nothing", "testsecret", options()).create(LEN).expect_err("no such bucket");
}
