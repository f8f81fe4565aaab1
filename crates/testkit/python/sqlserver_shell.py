"""A writer that is not ours: runs T-SQL on the server that a sqlserver:// URL names.

usage: sqlserver_shell.py URL SQL
"""

import sys
from urllib.parse import unquote, urlsplit

import pymssql

url, sql = sys.argv[1:]
parts = urlsplit(url)
with pymssql.connect(
    server=parts.hostname,
    port=str(parts.port or 1433),
    user=unquote(parts.username or ""),
    password=unquote(parts.password or ""),
    database=unquote(parts.path.lstrip("/")),
    autocommit=True,
) as connection:
    with connection.cursor() as cursor:
        cursor.execute(sql)
