-- A database as the first version wrote it, with one answer finished and one cut off by the end of its process.
BEGIN;
CREATE TABLE sessions (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,
        created REAL NOT NULL, used REAL NOT NULL,
        system TEXT NOT NULL, model TEXT NOT NULL,
        settings TEXT NOT NULL);
CREATE TABLE turns (
        id INTEGER PRIMARY KEY AUTOINCREMENT, session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
        asked REAL NOT NULL, model TEXT NOT NULL, vocabulary TEXT NOT NULL,
        question TEXT NOT NULL, question_ids BLOB NOT NULL,
        answer TEXT NOT NULL DEFAULT '', answer_ids BLOB NOT NULL DEFAULT x'',
        ended TEXT,
        statistics TEXT);
CREATE INDEX turns_of_sessions ON turns (session);
CREATE TABLE pieces (
        turn INTEGER NOT NULL REFERENCES turns ON DELETE CASCADE, number INTEGER NOT NULL,
        text TEXT NOT NULL, ids BLOB NOT NULL, PRIMARY KEY (turn, number)) WITHOUT ROWID;
CREATE TABLE texts (
        hash TEXT PRIMARY KEY, pages BLOB NOT NULL);
CREATE TABLE documents (
        id INTEGER PRIMARY KEY AUTOINCREMENT, session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
        turn INTEGER REFERENCES turns ON DELETE SET NULL,
        title TEXT NOT NULL, source TEXT NOT NULL, unit TEXT NOT NULL,
        remarks TEXT NOT NULL,
        hash TEXT NOT NULL REFERENCES texts);
CREATE INDEX documents_of_sessions ON documents (session);
CREATE INDEX documents_of_turns ON documents (turn);
CREATE INDEX documents_of_texts ON documents (hash);
CREATE TRIGGER a_text_that_nobody_uses AFTER DELETE ON documents
        WHEN NOT EXISTS (SELECT 1 FROM documents WHERE hash = old.hash)
        BEGIN DELETE FROM texts WHERE hash = old.hash; END;
CREATE VIRTUAL TABLE words USING fts5 (
        question, answer, content='turns', content_rowid='id', tokenize='unicode61 remove_diacritics 2');
CREATE TRIGGER words_of_a_new_turn AFTER INSERT ON turns
        BEGIN INSERT INTO words (rowid, question, answer) VALUES (new.id, new.question, new.answer); END;
CREATE TRIGGER words_of_a_deleted_turn AFTER DELETE ON turns BEGIN
        INSERT INTO words (words, rowid, question, answer)
            VALUES ('delete', old.id, old.question, old.answer);
        END;
CREATE TRIGGER words_of_a_changed_turn AFTER UPDATE OF question, answer ON turns BEGIN
        INSERT INTO words (words, rowid, question, answer)
            VALUES ('delete', old.id, old.question, old.answer);
        INSERT INTO words (rowid, question, answer) VALUES (new.id, new.question, new.answer);
        END;
INSERT INTO sessions VALUES (4, 'an old one', 1e9, 1e9, 'Be brief.', 'default', '{"temperature": 0.5}');
INSERT INTO texts VALUES ('ae54da00d18b7bb017b00a30196391eb4ace73688f1fd0652e464cd8b66f0fc7', x'789c8b8e36d45150cacf4b8dc9538ad551883602f24acaf341bc580072300828');
INSERT INTO turns VALUES (6, 4, 1e9, 'default', 'abc', 'Who?', x'0100000002000000', 'The mate.', x'070000000800000070110100', 'stop',
    '{"levels": {"target": {"proposed": 2, "accepted": 1, "tested": 2, "rounds": 2}}, "rebuilds": [], "prefill": null, "finished": {"reason": "stop", "prompt_tokens": 9, "cached_tokens": 0, "completion_tokens": 3, "prefill_s": 0.1, "first_token_s": 0.2, "decode_s": 0.3}}');
INSERT INTO turns VALUES (7, 4, 1e9, 'default', 'abc', 'Why?', x'0100000003000000', '', x'', NULL, NULL);
INSERT INTO pieces VALUES (7, 0, 'H', x'09000000');
INSERT INTO pieces VALUES (7, 1, 'e', x'0a000000');
INSERT INTO documents VALUES (3, 4, 6, 'The log', '/books/log.pdf', 'page', '{"broken": [], "notices": []}', 'ae54da00d18b7bb017b00a30196391eb4ace73688f1fd0652e464cd8b66f0fc7');
PRAGMA user_version = 1;
COMMIT;
