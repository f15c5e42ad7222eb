-- One row: events up to this number have been deleted because they are old. Audit entries stay.
CREATE TABLE event_retention (
    deleted_up_to bigint NOT NULL
);
INSERT INTO event_retention (deleted_up_to) VALUES (0);
