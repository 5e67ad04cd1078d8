//! The subjects of an experiment, and their mount options.
//!
//! # Invariants
//!
//! - **O1** The options of a subject belong to its name, and are never changed. An added option
//!   goes to those subjects of ours that do not set the same option.
//! - **O2** An option that no subject takes is an error. Otherwise figures would be read as if they
//!   had been measured with this option.

use crate::Target;

/// A file system that does the job.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The name in the table.
    pub name: String,
    /// The target on which the subject runs.
    pub target: Target,
    /// Mount options, for Buttress and for Linux's btrfs.
    pub options: String,
    /// With the library, each job runs this many threads. Each thread has one call in progress.
    pub threads: usize,
}

/// A mount option that is added to the options of our subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// The option as it was written.
    pub option: String,
    /// Whether the library has no such option.
    pub is_for_mounts: bool,
}

impl Subject {
    /// A subject with mount options, one thread to a job.
    #[must_use]
    pub fn new(name: &str, target: Target, options: &str) -> Self {
        Self { name: name.into(), target, options: options.into(), threads: 1 }
    }

    /// The same subject with `threads` threads for each job.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Our mounts, with mount options: one mount that reads requests from the device. If the kernel
    /// offers io_uring (`fuse.enable_uring`), also a mount that gets requests by io_uring.
    #[must_use]
    pub fn mounts(options: &str) -> Vec<Self> {
        let by = |name, transport: &str| {
            let mut mount = Self::new(name, Target::Mount, options);
            mount.add(transport);
            mount
        };
        let offered = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
        let is_offered = offered.is_ok_and(|text| text.trim() == "Y");
        let ring = is_offered.then(|| by("buttress mount by io_uring", "io_uring"));
        [by("buttress mount", "noio_uring")].into_iter().chain(ring).collect()
    }

    fn add(&mut self, option: &str) {
        if !self.options.is_empty() {
            self.options.push(',');
        }
        self.options.push_str(option);
    }

    fn says(&self, option: &str) -> bool {
        self.options.split(',').any(|own| about(own) == about(option))
    }
}

/// The subject matter of an option, which is the same for `nodatacow` and `datacow`.
fn about(option: &str) -> &str {
    let name = option.split_once('=').map_or(option, |(name, _)| name);
    name.strip_prefix("no").unwrap_or(name)
}

/// Adds options to the subjects that take them (O1).
///
/// # Errors
///
/// The first option that no subject takes (O2), with a remedy.
pub(crate) fn add_options(subjects: &mut [Subject], added: &[Added]) -> Result<(), String> {
    let before = subjects.to_vec();
    for Added { option, is_for_mounts } in added {
        let (mut could, mut takes) = (false, false);
        for (subject, before) in subjects.iter_mut().zip(&before) {
            let target = subject.target;
            if target.is_mount() || target.is_library() && !is_for_mounts {
                could = true;
                // Among added options the last one counts, as with a mount.
                if !before.says(option) {
                    takes = true;
                    subject.add(option);
                }
            }
        }
        match (could, takes) {
            (_, true) => {}
            (true, false) => {
                return Err(format!("{option}: the experiment itself sets that, for each of ours"));
            }
            (false, false) if *is_for_mounts => {
                return Err(format!("{option} is for mounts, of which there is none: see --mount"));
            }
            (false, false) => return Err(format!("{option}: none of ours is to be measured")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(option: &str, is_for_mounts: bool) -> Added {
        Added { option: option.to_owned(), is_for_mounts }
    }

    fn subjects() -> Vec<Subject> {
        vec![
            Subject::new("kernel btrfs", Target::Btrfs, ""),
            Subject::new("page by page", Target::Library, "read_batch=1"),
            Subject::new("ours", Target::Loop, ""),
            Subject::new("mount", Target::Mount, "noio_uring"),
        ]
    }

    /// O1: an option is added to each of our subjects that does not set it, in the given order.
    /// Subjects of the kernel are not changed.
    #[test]
    fn options_are_added_to_ours() {
        let mut all = subjects();
        let more = [
            added("read_batch=16", false),
            added("nowriteback_cache", true),
            added("read_batch=run", false),
        ];
        add_options(&mut all, &more).expect("a subject takes each");
        let options: Vec<_> = all.iter().map(|subject| subject.options.as_str()).collect();
        let both = "read_batch=16,read_batch=run";
        let mount = "noio_uring,read_batch=16,nowriteback_cache,read_batch=run";
        assert_eq!(options, ["", "read_batch=1", both, mount]);
    }

    /// O2: an option that no subject takes is refused, with the reason.
    #[test]
    fn unused_option_is_refused() {
        for (keep, option, is_for_mounts, why) in [
            (3, "handoff", true, "--mount"),
            (2, "read_batch=8", false, "sets that"),
            (4, "io_uring", true, "sets that"),
            (1, "alloc=linear", false, "none of ours"),
        ] {
            let error = add_options(&mut subjects()[..keep], &[added(option, is_for_mounts)]);
            let error = error.expect_err("no subject takes it");
            assert!(error.starts_with(option) && error.contains(why), "{error}");
        }
    }
}
