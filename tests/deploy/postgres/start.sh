# What the official image does with these variables.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    umask 077
    printf %s "$POSTGRES_PASSWORD" > /tmp/password
    initdb --username "$POSTGRES_USER" --pwfile /tmp/password --auth scram-sha-256 --encoding UTF8 --locale C
    rm /tmp/password
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -j postgres
fi
exec postgres -c listen_addresses='*'
