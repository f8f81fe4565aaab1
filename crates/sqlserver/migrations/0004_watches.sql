-- changefeed 4: watches on SQL Server 2017 and later, Azure SQL, and Babelfish for PostgreSQL.

insert into changefeed.schema_version (version) values (4);
GO
