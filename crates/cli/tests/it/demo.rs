//! The demo, made short.

/// The README's first command in a short form: through FUSE where it is available, and through the
/// library.
#[test]
fn the_demo_reads_back_what_it_wrote() {
    let bench = crate::bench();
    let short = ["demo", "--size", "1G", "--files", "300", "--large", "8M"];
    for more in [&[][..], &["--no-mount"]] {
        let mut args = short.to_vec();
        args.extend(more);
        let printed = bench.ok(&args);
        for line in ["compared", "renamed", "removed", "committed", "Everything read back equal"] {
            assert!(printed.contains(line), "no {line:?} in\n{printed}");
        }
    }
}
