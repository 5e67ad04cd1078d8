//! Who may have how much, and where. Decides, records nothing.
