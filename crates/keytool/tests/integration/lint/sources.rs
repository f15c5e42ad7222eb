//! The project's own sources follow its rules.

use ade_keytool::lint::Rule;

use super::{linter, root};

#[test]
fn own_sources_have_no_findings_and_no_exceptions() {
    let report = linter().check_paths(&[root()]);
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert!(report.files > 500, "only {} files", report.files);
    // Every exception has ended in the year 9999.
    let late = ade_keytool::lint::Linter::new(&super::CATALOGS, jiff::civil::date(9999, 12, 31));
    let late = late.check_paths(&[root()]);
    let exceptions: Vec<_> = late.findings.iter().filter(|found| found.rule == Rule::ExpiredAllow).collect();
    assert!(exceptions.is_empty(), "{exceptions:#?}");
}
