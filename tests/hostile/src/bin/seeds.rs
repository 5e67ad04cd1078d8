//! Makes the first corpora of the fuzzers: `cargo run -p buttress-hostile --bin seeds --
//! fuzz/corpus`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("seeds FOLDER");
        return ExitCode::from(2);
    };
    match buttress_hostile::seeds::write(folder.as_ref()) {
        Ok(written) => {
            for (target, count) in written {
                println!("{target}: {count}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}
