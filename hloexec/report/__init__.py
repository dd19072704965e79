"""What commands print: tables and sentences for the terminal, and the same data as JSON.

Here is what all reports share: layout, units, tables, records and their schemas. The reports of each command are in the
package that is called as the commands' own is (`cli.commands`).
"""
