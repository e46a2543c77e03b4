-- A catalog as the first schema had it: one place, one run.
BEGIN TRANSACTION;
CREATE TABLE checkpoints (
    run_id VARCHAR NOT NULL,
    content_id VARCHAR NOT NULL,
    name BLOB NOT NULL,
    step BIGINT,
    step_kind VARCHAR NOT NULL,
    layout VARCHAR NOT NULL,
    world_size BIGINT,
    purposes VARCHAR NOT NULL,
    size_bytes BIGINT NOT NULL,
    shard_count BIGINT NOT NULL,
    line BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    sealed_at_ns BIGINT NOT NULL,
    PRIMARY KEY (run_id, content_id),
    FOREIGN KEY(run_id) REFERENCES runs (run_id)
);
CREATE TABLE copies (
    run_id VARCHAR NOT NULL,
    content_id VARCHAR NOT NULL,
    place VARCHAR NOT NULL,
    name BLOB NOT NULL,
    state VARCHAR NOT NULL,
    coverage BLOB,
    evidence VARCHAR NOT NULL,
    verified_at_ns BIGINT,
    findings VARCHAR NOT NULL,
    PRIMARY KEY (run_id, content_id, place),
    FOREIGN KEY(run_id, content_id) REFERENCES checkpoints (run_id, content_id),
    FOREIGN KEY(place) REFERENCES places (place)
);
CREATE TABLE decisions (
    run_id VARCHAR NOT NULL,
    restart_id BLOB NOT NULL,
    epoch BIGINT NOT NULL,
    content_id VARCHAR,
    fresh BOOLEAN NOT NULL,
    PRIMARY KEY (run_id, restart_id, epoch)
);
CREATE TABLE events (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at_ns BIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    run_id VARCHAR,
    content_id VARCHAR,
    place VARCHAR,
    detail VARCHAR NOT NULL
);
INSERT INTO "events" VALUES(1,5,'catalog-created',NULL,NULL,NULL,'{"catalog":"11111111-2222-4333-8444-555555555555"}');
INSERT INTO "events" VALUES(2,5,'place-added',NULL,NULL,'p1','{"tier":"lustre","root":"/lustre/ckpt"}');
INSERT INTO "events" VALUES(3,6,'run-added','r1',NULL,NULL,'{"name":"team/llm"}');
CREATE TABLE manifests (
    run_id VARCHAR NOT NULL,
    content_id VARCHAR NOT NULL,
    packed BLOB NOT NULL,
    PRIMARY KEY (run_id, content_id),
    FOREIGN KEY(run_id, content_id) REFERENCES checkpoints (run_id, content_id)
);
CREATE TABLE meta (
    "key" VARCHAR NOT NULL,
    value VARCHAR NOT NULL,
    PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('schema_version','1');
INSERT INTO "meta" VALUES('catalog_uuid','11111111-2222-4333-8444-555555555555');
INSERT INTO "meta" VALUES('epoch','1');
CREATE TABLE places (
    place VARCHAR NOT NULL,
    tier VARCHAR NOT NULL,
    node BLOB,
    root BLOB NOT NULL,
    fs_type BLOB NOT NULL,
    source BLOB NOT NULL,
    first_seen_at_ns BIGINT NOT NULL,
    is_current BOOLEAN NOT NULL,
    PRIMARY KEY (place)
);
INSERT INTO "places" VALUES('p1','lustre',NULL,X'2F6C75737472652F636B7074',X'6C7573747265',X'667331',5,1);
CREATE TABLE records (
    run_id VARCHAR NOT NULL,
    record_id VARCHAR NOT NULL,
    number BIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    at_ns BIGINT NOT NULL,
    raw BLOB NOT NULL,
    PRIMARY KEY (run_id, record_id),
    FOREIGN KEY(run_id) REFERENCES runs (run_id)
);
CREATE TABLE run_roots (
    place VARCHAR NOT NULL,
    path BLOB NOT NULL,
    run_id VARCHAR NOT NULL,
    sidecar BLOB NOT NULL,
    PRIMARY KEY (place, path),
    FOREIGN KEY(place) REFERENCES places (place),
    FOREIGN KEY(run_id) REFERENCES runs (run_id)
);
CREATE TABLE runs (
    run_id VARCHAR NOT NULL,
    name BLOB NOT NULL,
    selector BLOB NOT NULL,
    expect VARCHAR,
    created_at_ns BIGINT NOT NULL,
    PRIMARY KEY (run_id),
    UNIQUE (name)
);
INSERT INTO "runs" VALUES('r1',X'7465616D2F6C6C6D',X'2A',NULL,6);
CREATE TABLE sightings (
    run_id VARCHAR NOT NULL,
    place VARCHAR NOT NULL,
    name BLOB NOT NULL,
    variant BLOB NOT NULL,
    step TEXT,
    step_kind VARCHAR NOT NULL,
    layout VARCHAR NOT NULL,
    size_bytes BIGINT NOT NULL,
    findings VARCHAR NOT NULL,
    notes VARCHAR NOT NULL,
    first_seen_at_ns BIGINT NOT NULL,
    last_seen_at_ns BIGINT NOT NULL,
    newest_mtime_ns BIGINT NOT NULL,
    PRIMARY KEY (run_id, place, name, variant),
    FOREIGN KEY(run_id) REFERENCES runs (run_id),
    FOREIGN KEY(place) REFERENCES places (place)
);
CREATE UNIQUE INDEX one_place_per_root ON places (root, ifnull(node, x'')) WHERE is_current;
CREATE INDEX ix_events_run_id ON events (run_id);
CREATE INDEX ix_run_roots_run_id ON run_roots (run_id);
CREATE TRIGGER events_stay BEFORE DELETE ON events
       BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_stand BEFORE UPDATE ON events
       BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_are_new BEFORE INSERT ON events
       WHEN EXISTS (SELECT 1 FROM events WHERE seq = NEW.seq)
       BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',3);
COMMIT;
