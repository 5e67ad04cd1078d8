//! A missing bucket or container, as servers answer for it.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_remote::store::Objects;
use buttress_remote::{Options, Site};

/// A server that answers each request with a code for a missing bucket. It counts the requests,
/// and ends with the process.
fn server(code: &'static str) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let seen = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            counts.fetch_add(1, Ordering::SeqCst);
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
            let len = body.len();
            let head = format!("HTTP/1.1 404 Not Found\r\nContent-Length: {len}\r\n");
            let _ = write!(stream, "{head}Connection: close\r\n\r\n{body}");
        }
    });
    (address, seen)
}

fn option(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// The error for a missing bucket or container comes after one request and names the bucket or
/// container. The client does not ask again.
#[test]
fn a_missing_container_is_named_at_once() {
    for (code, name) in [("ContainerNotFound", "container"), ("NoSuchBucket", "bucket")] {
        let (address, seen) = server(code);
        let endpoint = option("endpoint", &address);
        let store = match name {
            "container" => {
                let account = option("account_name", "a");
                Objects::az("c", &[endpoint, account, option("account_key", "a2V5")])
            }
            _ => {
                let id = option("access_key_id", "a");
                Objects::s3("c", &[endpoint, id, option("secret_access_key", "b")])
            }
        };
        let store = Arc::new(store.expect("all options"));
        let site = Site::in_store(store, "v", Options { write: true, ..Options::default() });
        for error in [
            site.open().expect_err("nothing there"),
            site.create(1 << 30).expect_err("nothing there"),
        ] {
            assert!(error.to_string().contains(&format!("no such {name}")), "{error}");
        }
        assert_eq!(seen.load(Ordering::SeqCst), 2, "{name}");
    }
}
