//! The policies by which groups are chosen and found.
//!
//! The published baselines exist only with the feature `baselines`. Without the feature each policy
//! has a single value, so the compiler removes the other branches.

#[cfg(feature = "baselines")]
use std::fmt;
#[cfg(feature = "baselines")]
use std::str::FromStr;

/// How a group is chosen for an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllocPolicy {
    /// One goal under a lock. Groups are tried one after the other, with a wait for each group that
    /// is held.
    #[cfg(feature = "baselines")]
    Linear,
    /// As `Linear`, but a group that is held is skipped while there are others.
    #[cfg(feature = "baselines")]
    LinearTrylock,
    /// An index by the largest free run. Held groups are skipped. All streams share one goal, which
    /// has no lock.
    #[cfg(feature = "baselines")]
    IndexSingleGoal,
    /// As `IndexSingleGoal`, with a goal for each of several streams.
    #[default]
    IndexGoals,
}

impl AllocPolicy {
    /// Whether all streams share one goal.
    pub(crate) fn has_one_goal(self) -> bool {
        self != Self::IndexGoals
    }
}

/// How the group of an address is found, and whether a writer in place keeps the group until the
/// write ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookupPolicy {
    /// A map under a lock for readers and writers. A write in place searches at its beginning and
    /// at its end.
    #[cfg(feature = "baselines")]
    RwlockDouble,
    /// As `RwlockDouble`, with one search: a writer keeps the group.
    #[cfg(feature = "baselines")]
    RwlockSingle,
    /// An immutable directory. Neither the search nor the guard writes memory that other processors
    /// read.
    #[default]
    Lockfree,
}

#[cfg(feature = "baselines")]
impl AllocPolicy {
    /// All policies, the oldest first.
    pub const ALL: [Self; 4] =
        [Self::Linear, Self::LinearTrylock, Self::IndexSingleGoal, Self::IndexGoals];

    pub(crate) fn is_linear(self) -> bool {
        matches!(self, Self::Linear | Self::LinearTrylock)
    }
}

#[cfg(feature = "baselines")]
impl fmt::Display for AllocPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linear => "linear",
            Self::LinearTrylock => "linear-trylock",
            Self::IndexSingleGoal => "index-single-goal",
            Self::IndexGoals => "index-goals",
        })
    }
}

#[cfg(feature = "baselines")]
impl FromStr for AllocPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, &Self::ALL)
    }
}

#[cfg(feature = "baselines")]
impl LookupPolicy {
    /// All policies, the oldest first.
    pub const ALL: [Self; 3] = [Self::RwlockDouble, Self::RwlockSingle, Self::Lockfree];
}

#[cfg(feature = "baselines")]
impl fmt::Display for LookupPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RwlockDouble => "rwlock-double",
            Self::RwlockSingle => "rwlock-single",
            Self::Lockfree => "lockfree",
        })
    }
}

#[cfg(feature = "baselines")]
impl FromStr for LookupPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, &Self::ALL)
    }
}

#[cfg(feature = "baselines")]
fn parse<T: Copy + fmt::Display>(text: &str, all: &[T]) -> Result<T, String> {
    let known = |one: &&T| one.to_string() == text;
    all.iter().find(known).copied().ok_or_else(|| {
        let names: Vec<_> = all.iter().map(ToString::to_string).collect();
        format!("is one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every name parses to its policy, and the error for an unknown name lists all names.
    #[test]
    fn names_round_trip() {
        for policy in AllocPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for policy in LookupPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let refusal = "best".parse::<AllocPolicy>().expect_err("no such policy");
        assert!(refusal.contains("linear-trylock"));
    }
}
